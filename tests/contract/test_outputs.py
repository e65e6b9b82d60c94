"""What a batch function may return, and what it may not."""

from __future__ import annotations

import pickle
from collections import UserList, deque
from typing import Any

import numpy as np
import pytest

from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import torch


@pytest.mark.parametrize(
    "rows",
    [tuple, np.array, torch.tensor, UserList, deque, range],
    ids=["tuple", "ndarray", "tensor", "UserList", "deque", "range"],
)
def test_any_sized_sequence_of_rows_will_do(flavour: Flavour, rows: Any) -> None:
    """Arrays, tuples and their like are rows."""
    fn = flavour.decorate((lambda xs: range(len(xs))) if rows is range else rows, timeout_ms=0)
    answer = flavour.call(fn, [0, 1, 2])
    assert type(answer) is list
    assert [int(row) for row in answer] == [0, 1, 2]
    assert int(flavour.call(fn, 0)) == 0


def test_rows_of_an_array_keep_their_type(flavour: Flavour) -> None:
    """A row of a float32 matrix is a float32 vector."""
    fn = flavour.decorate(lambda xs: np.array([[x, x] for x in xs], dtype=np.float32), timeout_ms=0)
    assert flavour.call(fn, 1).dtype == np.float32
    assert flavour.call(fn, 1).shape == (2,)
    assert [row.tolist() for row in flavour.call(fn, [1, 2])] == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    "outputs",
    [None, 3, "ab", b"ab", {"a": 1, "b": 2}, {1, 2}, iter([1, 2]), (x for x in "ab"), np.array(2), object],
)
def test_what_is_not_one_row_per_item_is_a_type_error(flavour: Flavour, outputs: Any) -> None:
    """The function's name and the offending type are in the message."""

    def embed(items: list[Any]) -> Any:
        return outputs

    fn = flavour.decorate(embed, timeout_ms=0)
    with pytest.raises(TypeError, match=f"embed must return .* not {type(outputs).__qualname__}"):
        flavour.call(fn, [1, 2])


def test_a_data_frame_is_a_type_error(flavour: Flavour) -> None:
    """It iterates over its columns, so its rows would silently be swapped for them."""
    frame = UserList("ab")
    frame.columns = ["a", "b"]  # type: ignore[attr-defined]
    fn = flavour.decorate(lambda xs: frame, timeout_ms=0)
    with pytest.raises(TypeError, match="UserList"):
        flavour.call(fn, [1, 2])


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_or_tuple_of_a_class_with_columns_is_none(flavour: Flavour, kind: Any) -> None:
    """It iterates over its rows, whatever attributes it has."""
    rows = type("Rows", (kind,), {"columns": ["a"]})
    fn = flavour.decorate(rows, timeout_ms=0)
    assert flavour.call(fn, [1, 2]) == [1, 2]


@pytest.mark.parametrize("results", [0, 1, 3])
def test_a_wrong_number_of_results_is_a_batch_error(flavour: Flavour, results: int) -> None:
    """It names both numbers, comes to every caller of the batch, and is a ValueError."""

    def embed(items: list[Any]) -> list[Any]:
        return [0] * results

    fn = flavour.decorate(embed, timeout_ms=0, isolate_errors=False)
    with pytest.raises(
        BatchError, match=f"embed returned {results} results? for a batch of 2 items"
    ) as caught:
        flavour.call(fn, [1, 2])
    assert isinstance(caught.value, ValueError)


def test_a_list_that_the_function_keeps_is_not_the_callers(flavour: Flavour) -> None:
    """A function may return the same list every time."""
    kept: list[Any] = []

    def same(items: list[Any]) -> list[Any]:
        kept[:] = items
        return kept

    fn = flavour.decorate(same, timeout_ms=0)
    first = flavour.call(fn, [1, 2])
    flavour.call(fn, [3, 4])
    assert first == [1, 2]


@pytest.mark.parametrize("array", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_of_one_array_are_each_callers_own(flavour: Flavour, array: Any) -> None:
    """Changing one changes no other, keeping one keeps no other, and the function may reuse its buffer."""
    buffer = array((4, 1000))
    gate = Gate(lambda xs: buffer[: len(xs)], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(4)]
    gate.open()
    first, *others = [future.result(PATIENCE_S) for future in futures]
    first += 1
    buffer[:] = 9
    assert all(float(row.sum()) == 1000 for row in others)
    assert float(first.sum()) == 2000
    assert len(pickle.dumps(first)) < 12_000


class Found(dict[str, Any]):
    """A dict of which the keys are attributes, and which raises `KeyError` for all others."""

    __getattr__ = dict.__getitem__


def test_outputs_may_refuse_attributes_in_their_own_way(flavour: Flavour) -> None:
    """The instance is asked for none that its class has not got."""
    fn = flavour.decorate_arrays(lambda features: Found(y=features["x"] + 1), timeout_ms=0)
    answer = flavour.call(fn, x=np.zeros(2))
    assert answer.y.tolist() == answer["y"].tolist() == [1, 1]
