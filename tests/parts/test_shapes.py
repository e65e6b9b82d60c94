"""The shapes that options leave to a function."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.options import ArrayOptions, Options
from batched._parts.shapes import shapes_of

SIZES: dict[str, Any] = {"batch_sizes": (1, 2), "batch_size": 2}


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        (Options(**SIZES), [1, 2]),
        (Options(**SIZES, max_batch_length=1), [1, 2]),
        (ArrayOptions(**SIZES, pad_to_lengths=(4, 8)), [(1, 4), (1, 8), (2, 4), (2, 8)]),
        (ArrayOptions(**SIZES, pad_to_lengths=(4, 8), max_batch_length=8), [(1, 4), (1, 8), (2, 4)]),
        (ArrayOptions(**SIZES, pad_to_lengths=(4, 8), max_batch_length=1), [(1, 4), (1, 8)]),
        (
            ArrayOptions(**SIZES, pad_to_lengths={"x": (4,), "y": (1, 2)}),
            {"x": [(1, 4), (2, 4)], "y": [(1, 1), (1, 2), (2, 1), (2, 2)]},
        ),
        (ArrayOptions(**SIZES, pad_to_lengths={}), [1, 2]),
    ],
)
def test_they_are_the_sizes_and_the_lengths_within_the_budget(options: Options, shapes: Any) -> None:
    """The smallest size has all lengths: a row runs, whatever the budget."""
    assert shapes_of(options, "f") == shapes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(batch_size=7, continuous=True), "any number of items up to batch_size=7: to warm it up"),
        (Options(batch_size=7), r"f can be given batches of any size up to batch_size=7: set batch_sizes"),
        (ArrayOptions(), "set batch_sizes"),
        (ArrayOptions(**SIZES), "f can be given rows of any length: set pad_to_lengths"),
        (ArrayOptions(**SIZES, pad_to_multiple_of=8), r"\(pad_to_multiple_of=8 has no longest one\): set"),
    ],
)
def test_what_leaves_them_open_is_named(options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shapes_of(options, "f")
