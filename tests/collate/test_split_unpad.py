"""`unpad_outputs`: the padding of the features comes off the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched import BatchError
from tests.kit.company import company, itself, rows_of, same
from tests.kit.flavours import Flavour
from tests.kit.optional import torch


def two_lengths(features: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": features["x"], "labels": features["y"], "all": features["x"].sum(1)}


@pytest.mark.parametrize("unpad", [True, {"tokens": "x", "labels": "y"}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_comes_off_the_outputs(flavour: Flavour, unpad: Any, side: Any) -> None:
    """Of all that are as long as a feature, or of those that are named, as a feature says."""
    calls = [{"x": np.ones((2, 3)), "y": np.ones((2, 5))}, {"x": np.ones((1, 4)), "y": np.ones((1, 6))}]
    with company(two_lengths, unpad_outputs=unpad, padding_side=side, flavour=flavour) as there:
        for call, answer in zip(calls, there.answers(*calls), strict=True):
            assert same(answer, two_lengths(call))


@pytest.mark.parametrize("unpad", [True, {0: "x"}])
def test_a_single_output_is_number_0(unpad: Any) -> None:
    """As the first of a list or tuple is."""
    calls = [{"x": np.ones((2, 3))}, {"x": np.ones((1, 4))}]
    for function in (itself, lambda features: [features["x"], features["x"].sum(1)]):
        with company(function, unpad_outputs=unpad) as there:
            for call, answer in zip(calls, there.answers(*calls), strict=True):
                assert same(answer, function(call))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_ragged_rows_come_back_ragged(flavour: Flavour, make: Any, batch_size: int, side: Any) -> None:
    """As a list of rows, each of its own length; rows that happen to be equal come as an array."""
    ragged, equal = [make(3), make(1), make(0), make(4), make(1)], [make(2), make(2)]
    with company(
        itself, batch_size=batch_size, padding_side=side, unpad_outputs=True, flavour=flavour
    ) as there:
        first, second = there.answers({"x": ragged}, {"x": equal})
        assert same(first, ragged)
        assert same(second, rows_of(equal))


def test_without_it_rows_come_padded_to_the_longest_of_the_call(flavour: Flavour) -> None:
    """In one batch, and where the batches of one call were padded to other lengths."""
    rows = [np.ones(1), np.ones(2), np.ones(3), np.ones(4)]
    for batch_size in (2, 4):
        with company(itself, batch_size=batch_size, flavour=flavour) as there:
            (answer,) = there.answers({"x": rows})
            assert same(answer, np.tri(4))


@pytest.mark.parametrize(
    ("unpad", "message"),
    [
        (
            {"nobody": "x"},
            "unpad_outputs names the output 'nobody', but the function returned 'tokens', 'labels', 'all'",
        ),
        (
            {"tokens": "z"},
            r"says that its output\['tokens'\] is padded like the feature 'z', but the features are 'x', 'y'",
        ),
        (
            {"all": "x"},
            r"its output\['all'\] is padded like the feature 'x', but its shape is \(2,\) and .* \(2, 4\)",
        ),
        ({"tokens": "y"}, r"its shape is \(2, 4\) and the feature's is \(2, 6\)"),
        ({0: "x"}, "names the output 0"),
    ],
)
def test_outputs_that_cannot_be_cut_are_an_error(flavour: Flavour, unpad: Any, message: str) -> None:
    """It says what was named, and what is there."""
    with company(two_lengths, unpad_outputs=unpad, flavour=flavour, isolate_errors=False) as there:
        errors = there.errors(
            {"x": np.ones((1, 3)), "y": np.ones((1, 5))}, {"x": np.ones((1, 4)), "y": np.ones((1, 6))}
        )
        for caught in errors:
            with pytest.raises(BatchError, match=message):
                raise caught


def test_an_output_as_long_as_two_features_needs_to_be_told_whose_padding_it_has(flavour: Flavour) -> None:
    """Only calls that were padded fail; a dict of output and feature settles it."""
    calls = [{"x": np.ones((1, 2)), "y": np.ones((1, 3))}, {"x": np.ones((1, 3)), "y": np.ones((1, 3))}]
    with company(itself, unpad_outputs=True, flavour=flavour) as there:
        ambiguous, clear = there.errors(*calls)
        with pytest.raises(
            BatchError, match=r"as long as several features .* 'x', 'y'; say .*unpad_outputs={output: fe"
        ):
            raise ambiguous
        assert clear is None
    with company(itself, unpad_outputs={0: "x"}, flavour=flavour) as there:
        assert [answer.shape for answer in there.answers(*calls)] == [(1, 2), (1, 3)]


@pytest.mark.parametrize("lengths", [[1, 2, 3, 4], [3, 4, 1, 2]])
def test_an_output_that_is_as_long_as_the_padding_by_chance_is_a_clear_error(lengths: list[int]) -> None:
    """Where one batch of a call shows it and another does not; naming the outputs settles it."""
    rows = {"x": [np.ones(length) for length in lengths]}
    for unpad, error in [(True, True), ({}, False)]:
        with company(lambda f: np.ones((len(f["x"]), 4)), batch_size=2, unpad_outputs=unpad) as there:
            if error:
                with pytest.raises(
                    BatchError, match="judging by its shape, its output was padded in one batch but"
                ):
                    there.answers(rows)
            else:
                assert there.answers(rows)[0].shape == (4, 4)
