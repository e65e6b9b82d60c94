"""The collator that makes copies, with each kind of collator inside."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from batched._collate.arrays import FeatureCollator
from batched._collate.columns import ColumnCollator
from batched._collate.copies import CopyingCollator
from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.options import ArrayOptions
from batched.errors import BatchError
from tests.kit.optional import torch

SIZES = (4, 8)


def echo(items: Any) -> Any:
    return items


def batch_of(collator: Any, *asked: Any, copies: Any = None) -> Batch:
    """Return a batch of whole calls."""
    calls = [collator.read(echo, args if isinstance(args, tuple) else (args,), {}, 0.0) for args in asked]
    batch = Batch([(call, 0, call.size) for call in calls], sum(call.size for call in calls))
    if copies is not None:
        batch.copies = copies
    return batch


def test_without_copies_it_is_the_collator_inside() -> None:
    collator = CopyingCollator(ListCollator("f"), "f", SIZES)
    batch = batch_of(collator, "a", ["b", "c", "d"])
    assert collator.collate(batch) == ["a", "b", "c", "d"]
    assert collator.split(["A", "B", "C", "D"], batch) == ["A", ["B", "C", "D"]]


def test_copies_stand_behind_the_items_of_lists() -> None:
    collator = CopyingCollator(ListCollator("f"), "f", SIZES)
    batch = batch_of(collator, "a", ["b", "c"], copies=(1, (1, 0)))
    assert collator.collate(batch) == ["a", "b", "c", "b"]
    assert collator.split(("A", "B", "C", ValueError()), batch) == ["A", ["B", "C"]]
    assert batch.failed == 0


def test_of_a_list_that_is_the_whole_batch_the_items_are_not_touched() -> None:
    collator = CopyingCollator(ListCollator("f"), "f", SIZES)
    batch = batch_of(collator, ["a", "b", "c"], copies=(1, (0, 2)))
    items = collator.collate(batch)
    items.clear()
    assert batch.calls[0].inputs == ["a", "b", "c"]
    assert batch.has_lists


def test_the_number_of_results_is_that_of_items_and_copies() -> None:
    collator = CopyingCollator(ListCollator("f"), "f", SIZES)
    batch = batch_of(collator, "a", "b", "c", copies=(1, (0, 0)))
    with pytest.raises(BatchError, match="3 results for a batch of 4"):
        collator.split([1, 2, 3], batch)
    assert batch.returned == 3


def test_columns() -> None:
    parameters = list(inspect.signature(lambda a, b: None).parameters.values())
    collator = CopyingCollator(ColumnCollator("f", parameters), "f", SIZES)
    batch = batch_of(collator, ([1, 2], [3, 4]), (5, 6), copies=(1, (1, 0)))
    assert collator.collate(batch) == [[1, 2, 5, 5], [3, 4, 6, 6]]
    assert collator.split([7, 8, 9, 10], batch) == [[7, 8], 9]


def test_rows_of_arrays_and_what_of_them_is_padding() -> None:
    """Copies count neither as elements nor as padding."""
    collator = CopyingCollator(FeatureCollator("f", ArrayOptions()), "f", SIZES)
    asked = {"ids": [np.array([1]), np.array([2, 3, 4])]}, {"ids": np.array([[5, 6]])}
    batch = batch_of(collator, *asked, copies=(1, (0, 1)))
    collated = collator.collate(batch)
    assert collated["ids"].tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0], [2, 3, 4]]
    assert (batch.real, batch.padded, batch.shapes) == (6, 9, [(3,)])
    one, two = collator.split(collated["ids"].sum(axis=1), batch)
    assert (one.tolist(), two.tolist()) == ([1, 9], [11])


def test_a_row_without_a_shape_has_copies() -> None:
    """A row of an array of one axis may be any object: not an array."""
    collator = CopyingCollator(FeatureCollator("f", ArrayOptions()), "f", SIZES)
    batch = batch_of(collator, {"x": np.array(["a", None], dtype=object)}, copies=(2, (0, 1)))
    assert collator.collate(batch)["x"].tolist() == ["a", None, None, None]
    assert (batch.real, batch.padded) == (2, 2)


def test_copies_do_not_make_up_for_rows_that_run_elsewhere() -> None:
    """Two rows of a call of three, and a copy: torch would cut three rows at once."""
    collator = CopyingCollator(FeatureCollator("f", ArrayOptions()), "f", SIZES)
    call = collator.read(echo, ({"ids": torch.ones((3, 2))},), {}, 0.0)
    batch = Batch([(call, 0, 2)], 2)
    batch.copies = (1, (0, 1))
    [part] = collator.split(collator.collate(batch)["ids"].sum(1), batch)
    assert part.arrays[0].tolist() == [2.0, 2.0]


def test_where_no_item_has_a_copy_it_says_so() -> None:
    collator = CopyingCollator(ListCollator("f"), "f", SIZES)
    with pytest.raises(BatchError, match=r"a batch of 1 cannot be filled up to 4, .*\(4, 8\).*add 1"):
        collator.collate(batch_of(collator, iter("a"), copies=(3, None)))
