"""Which rows are copied, and that plain rows are not looked at one by one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batched._collate.owned import owned, rows_of
from tests.kit.optional import needs_torch, torch

BUFFER = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "rows",
    [
        [1, "a", None, 1.5, b"c", True, 1j],
        [],
        [[0.5] * 100, (), {}, {"a": 1}, [1, "a"]],
        [np.float64(1), np.str_("a"), np.ones(2), (np.ones(2), 1)],
        [{1, 2}, object(), iter([]), len],
        [[[[[BUFFER[0]]]]]],  # deeper than that is not looked at
    ],
    ids=["plain", "empty", "containers", "arrays", "others", "deep"],
)
def test_where_nothing_is_a_view_the_list_is_the_same(rows: list[Any]) -> None:
    """It is not even copied."""
    before = list(rows)
    assert owned(rows) is rows or all(map(lambda one, other: one is other, owned(rows), before))
    assert all(row is other for row, other in zip(rows, before, strict=True))


@pytest.mark.parametrize(
    "row",
    [
        [0.5] * 100 + [BUFFER[0]],
        [0.5] * 100 + [BUFFER[0, 0:1]],
        [0.5] * 100 + [np.asarray(BUFFER[0])[0:1].reshape(())],
        [None] * 100 + [BUFFER[0]],
        [[[BUFFER[0]]]],
    ],
    ids=["last", "one", "no axis", "none", "three"],
)
def test_one_view_among_many_values_is_found(row: list[Any]) -> None:
    """Whatever is before it, and the function's own list is left as it is."""
    before = row[-1]
    (answer,) = owned([row])
    assert answer is not row
    assert row[-1] is before
    assert not np.shares_memory(_last(answer), BUFFER)


def _last(row: Any) -> Any:
    return _last(row[-1]) if isinstance(row, list) else row


def test_a_container_of_a_class_that_cannot_be_made_is_a_plain_one() -> None:
    """The values count."""

    class Boxes(list[Any]):
        def __init__(self, one: Any, other: Any) -> None:
            super().__init__([one, other])

    (answer,) = owned([Boxes(1, BUFFER[0])])
    assert answer[0] == 1
    assert answer[1].tolist() == [0, 1, 2]


def test_a_structure_of_torch_keeps_its_type() -> None:
    """Such as the values and indices of a maximum."""
    whole = torch.max(torch.ones(4, 3, 2), dim=1)
    row = type(whole)((whole.values[0], whole.indices[0]))
    (answer,) = owned([row])
    assert type(answer) is type(row)
    assert answer.values.untyped_storage().nbytes() == answer.values.nbytes


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).to_sparse()[0], lambda: torch.tensor(1.0)]
)
def test_tensors_of_any_layout_may_be_rows(make: Any) -> None:
    """They have no storage to compare."""
    row = make()
    (answer,) = owned([row])
    assert answer.to_dense().tolist() == row.to_dense().tolist()


def test_the_arrays_of_cupy_are_copied_where_they_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a base, as those of numpy do."""

    class Row:
        def __init__(self, base: Any) -> None:
            self.base = base

        def copy(self) -> Row:
            return Row(None)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Row))
    rows = [Row(None), Row(BUFFER)]
    one, other = owned(rows)
    assert one is rows[0]
    assert other is not rows[1]


def test_a_memory_view_that_cannot_be_copied_is_handed_out_as_it_is() -> None:
    """One that is released, or of a format that Python cannot make."""
    released = memoryview(b"abc")
    released.release()
    floats: Any = np.ones(3, dtype=">f4")
    foreign = memoryview(floats)
    assert owned([released, foreign]) == [released, foreign]
    assert owned([memoryview(bytearray(b"abc"))[1:]])[0].obj == b"bc"
    assert owned([memoryview(b"abc")[1:]])[0].readonly


TENSORS = {
    "two axes": lambda: torch.arange(6.0).reshape(2, 3),
    "one axis": lambda: torch.arange(2),
    "no rows": lambda: torch.zeros(0, 3),
    "transposed": lambda: torch.arange(6).reshape(3, 2).T,
    "conjugated": lambda: torch.tensor([[1 + 2j], [3j]]).conj(),
    "half": lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    "gradient": lambda: torch.ones(2, 3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
}


@needs_torch
@pytest.mark.parametrize("made", TENSORS)
@pytest.mark.parametrize("inference", [False, True])
def test_rows_of_a_tensor_are_copies(made: str, inference: bool) -> None:
    """They are what `list` returns, each with memory of its own, and made in the same mode."""
    with torch.inference_mode(inference):
        tensor = TENSORS[made]()
    rows, expected = rows_of(tensor, len(tensor)), list(tensor)
    assert rows is not None
    assert [row.tolist() for row in rows] == [row.tolist() for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert type(row) is type(other)
        assert (row.dtype, row.shape, row.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert row.is_inference() == inference
        assert row.untyped_storage().nbytes() == row.nbytes


@needs_torch
def test_other_tensors_have_no_faster_way() -> None:
    """Those of other layouts, and what has another number of rows."""
    assert rows_of(torch.ones(2, 3).to_sparse(), 2) is None
    assert rows_of(torch.ones(2, 3), 3) is None
    assert rows_of(torch.tensor(1.0), 1) is None
    assert rows_of(np.ones((2, 3)), 2) is None
    assert rows_of([1, 2], 2) is None
