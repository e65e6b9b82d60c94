"""A call of arrays whose rows run in several batches gets what it would have got from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batched import BatchError, inference
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import torch


class Bad(Exception):
    """What a batch with a culprit in it raises."""


BAD = -1


def doubled(x: Any) -> Any:
    return x * 2


def products(x: Any) -> Any:
    """Return an output with two axes as long as the input."""
    return x[:, :, None] * x[:, None, :]


def sums(x: Any) -> Any:
    return x.sum(1)


def frames(x: Any) -> Any:
    """Return an output with an axis that depends on the padding but is not as long, as models of sound do."""
    return x[:, ::2] * 2


def held(flavour: Flavour, function: Callable[[Any], Any], most: int = 1000, **options: Any) -> Any:
    """Return a function that fails for culprits and above `most` rows, its gate and its first call."""

    def answer(features: dict[str, Any]) -> Any:
        x = features["x"]
        if len(x) > most:
            raise MemoryError
        if (x == BAD).any():
            raise Bad
        return function(x)

    gate = Gate(answer, shut=True, note=lambda features: tuple(features["x"].shape))
    fn = flavour.decorate_arrays(gate, timeout_ms=0, isolate_errors=True, **options)
    first = flavour.start(fn, x=np.ones((1, 1)))
    gate.wait_for_batch()
    return fn, gate, first


def answers(flavour: Flavour, function: Callable[[Any], Any], calls: list[Any], **options: Any) -> list[Any]:
    """Return the answers or errors of calls that have all waited together."""
    fn, gate, first = held(flavour, function, **options)
    futures = [flavour.start(fn, x=call) for call in calls]
    gate.open()
    found = [future.exception(PATIENCE_S) or future.result() for future in futures]
    assert not first.exception(PATIENCE_S)
    flavour.close(fn)
    return found


def padded(rows: list[Any], length: int, side: str = "right") -> Any:
    """Return rows as the function gets them where the longest has that length."""
    full = np.zeros((len(rows), length))
    for at, row in enumerate(rows):
        full[at, slice(length - len(row), length) if side == "left" else slice(len(row))] = row
    return full


def rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def block(rows: int, length: int, value: float = 1) -> Any:
    return np.full((rows, length), float(value))


# -- a batch that fails is halved between calls -------------------------------------------------------------


def test_an_innocent_call_is_not_cut(flavour: Flavour) -> None:
    """Its neighbour fails and has rows of another length: no part of it runs without the rest."""
    calls = [block(3, 5, 1), block(3, 9, 2), block(2, 7, BAD)]
    for function in (doubled, frames):
        first, second, culprit = answers(flavour, function, calls, batch_size=8)
        assert np.array_equal(first, function(calls[0]))
        assert np.array_equal(second, function(calls[1]))
        assert isinstance(culprit, Bad)


def test_a_call_that_is_alone_is_cut_into_parts_of_one_length(flavour: Flavour) -> None:
    """As its batch was padded, whatever the function makes of that."""
    rows = [np.arange(1.0, length + 1) for length in (3, 5, 9, 2, 4, 4, 7)]
    for function in (doubled, products, sums, frames):
        (found,) = answers(flavour, function, [rows], batch_size=8, most=2)
        assert np.array_equal(found, function(padded(rows, 9)))


def test_rows_that_differ_along_several_axes_are_cut_into_parts_of_one_shape() -> None:
    """The last axes are rounded only where they differ in all of the call."""
    rows = [np.ones(shape) for shape in ((1, 3), (2, 3), (4, 5), (1, 1))]
    (found,) = answers(
        Flavour(), lambda x: frames(x)[..., ::2] / 2, [rows], batch_size=8, most=1, pad_to_multiple_of=4
    )
    assert found.shape == (4, 2, 4)
    assert [row.sum() for row in found] == [2, 2, 6, 1]


# -- calls that are cut as no batch has room for them -------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_company_of_another_length_changes_no_row(flavour: Flavour, make: Any, side: Any) -> None:
    """A part that was padded to the length of its company is as long as the others in the end."""
    long, other = make(np.arange(1.0, 31).reshape(6, 5)), make(np.ones((2, 9)))
    for function in (doubled, products, sums):
        first, second = answers(flavour, function, [long, other], batch_size=4, padding_side=side)
        assert type(first) is type(long)
        assert first.shape == function(long).shape
        assert (first == function(long)).all()
        assert second.shape == function(other).shape


def test_what_differs_in_more_than_padding_is_an_error_that_says_so(flavour: Flavour) -> None:
    """It names both shapes, and reaches the call that cannot be joined, and no other."""
    first, second = answers(flavour, frames, [block(6, 5), block(2, 9)], batch_size=4)
    assert isinstance(first, BatchError)
    assert "rows of shape (5,) from one batch and of (3,) from another" in str(first) or (
        "rows of shape (3,) from one batch and of (5,) from another" in str(first)
    )
    assert np.array_equal(second, frames(block(2, 9)))


# -- all together -------------------------------------------------------------------------------------------


@settings(max_examples=times(150))
@given(
    calls=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=6),
    ragged=st.lists(st.booleans(), min_size=6, max_size=6),
    bad=st.sets(st.integers(0, 5), max_size=2),
    batch_size=st.integers(1, 12),
    most=st.integers(1, 12),
    side=st.sampled_from(["left", "right"]),
    multiple=st.sampled_from([1, 4]),
    function=st.sampled_from([doubled, products, sums]),
)
def test_every_innocent_call_gets_its_rows(  # noqa: PLR0913, PLR0917
    calls: list[list[int]],
    ragged: list[bool],
    bad: set[int],
    batch_size: int,
    most: int,
    side: str,
    multiple: int,
    function: Callable[[Any], Any],
) -> None:
    """Whatever company it had, how often batches failed, and how small they had to be."""
    asked: list[list[Any]] = []
    for number, lengths in enumerate(calls):
        own = lengths if ragged[number] else [max(lengths)] * len(lengths)
        asked.append([np.full(length, float(number + 1)) for length in own])
    culprits = {number for number in bad if number < len(asked) and asked[number][0].size}
    for number in culprits:
        asked[number][0][:] = BAD
    found = answers(
        Flavour(),
        function,
        [rows if ragged[number] else np.stack(rows) for number, rows in enumerate(asked)],
        batch_size=batch_size,
        most=most,
        padding_side=side,
        pad_to_multiple_of=multiple,
    )
    for number, (rows, answer) in enumerate(zip(asked, found, strict=True)):
        if number in culprits:
            assert isinstance(answer, Bad)
            continue
        assert not isinstance(answer, Exception), answer
        longest = rounded(max(map(len, rows)), multiple)
        length = longest if function is sums else answer.shape[1]
        assert length >= longest
        assert np.array_equal(answer, function(padded(rows, length, side)))


def test_a_call_is_not_made_longer_than_its_own_rows_by_its_own_parts() -> None:
    """It is as long as one batch would be, with zeros beyond what each part was padded to."""
    fn = inference.dynamically(lambda features: features["x"] + 1, batch_size=2, timeout_ms=0)
    found = fn(x=[np.zeros(length) for length in (1, 1, 3, 2)])
    assert np.array_equal(found, [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
    fn.shutdown()
