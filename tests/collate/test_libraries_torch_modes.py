"""Tensors with and without grad, and inference tensors, go in and come out as the function means them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.company import company, itself
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S
from tests.kit.optional import torch


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("unpad", [False, True])
def test_results_are_what_the_function_made_under_its_mode(
    flavour: Flavour, batch_size: int, unpad: bool
) -> None:
    """Inference tensors, tensors with grad and plain ones; whole, in parts, cut."""
    weight = torch.nn.Parameter(torch.ones(3))
    modes: list[tuple[Any, bool, bool]] = [
        (torch.inference_mode(), True, False),
        (torch.no_grad(), False, False),
        (torch.enable_grad(), False, True),
    ]
    for mode, inference_, grad in modes:
        with company(
            mode(lambda f: f["x"] * weight), batch_size=batch_size, unpad_outputs=unpad, flavour=flavour
        ) as there:
            for answer in there.answers({"x": torch.ones(3, 3)}, {"x": torch.ones(1, 3)}):
                assert (answer.is_inference(), answer.requires_grad) == (inference_, grad)
                assert answer.tolist() == [[1.0] * 3] * len(answer)


@pytest.mark.parametrize("others", [0, 1])
def test_inference_tensors_may_go_into_a_function_with_grad(others: int) -> None:
    """The function gets a normal tensor of them, alone as in company."""
    layer = torch.nn.Linear(3, 2)
    with torch.inference_mode():
        x = torch.ones(2, 3)
    with company(lambda features: layer(features["x"])) as there:
        for answer in there.answers(*[{"x": x}] * (1 + others)):
            assert answer.requires_grad
    with company(itself) as there, torch.inference_mode():
        future = there.fn.submit(x=x)
        there.gate.open()
        assert future.result(PATIENCE_S).tolist() == x.tolist()


def test_an_input_that_needs_grad_gets_it_and_gives_it_to_no_other_call(flavour: Flavour) -> None:
    """Its caller can go backward; another caller of the batcher has a plain tensor, as ever."""
    x, plain = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    for batch_size in (1, 8):
        with company(
            lambda features: features["x"] ** 2, batch_size=batch_size, unpad_outputs=True, flavour=flavour
        ) as there:
            graded, other, ragged = there.answers({"x": x}, {"x": plain}, {"x": [x[0], plain[0, :2]]})
        assert graded.requires_grad
        assert not other.requires_grad
        assert all(row.requires_grad for row in ragged)
        x.grad = None
        graded.sum().backward()
        assert x.grad.tolist() == [[2.0] * 3] * 2
    assert not plain.requires_grad


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_the_mode_of_a_caller_takes_no_gradient_from_its_input(mode: str) -> None:
    """A call, a `submit` and a list of rows are under `no_grad` what they are without it."""

    def slope(features: dict[str, Any]) -> Any:
        x = features["x"]
        (found,) = torch.autograd.grad((x**2).sum(), x)
        return found

    x = torch.ones(2, 3, requires_grad=True)
    rows = [torch.ones(3, requires_grad=True), torch.ones(3)]
    ragged = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    for given in (x, rows, ragged):
        with company(slope, unpad_outputs=True) as there:
            with getattr(torch, mode)():
                future = there.fn.submit(x=given)
                there.gate.open()
                called = there.fn(x=given)
            for answer in (future.result(PATIENCE_S), called):
                assert [row.tolist() for row in answer] == [[2.0] * len(row) for row in given]
