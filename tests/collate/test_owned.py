"""Which rows are copied, and that plain rows are not looked at one by one."""

from __future__ import annotations

import sys
import warnings
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batched._collate.libraries import library_of
from batched._collate.own_copies import objects_in, own_copy
from batched._collate.owned import owned
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


@pytest.mark.parametrize("row", [[0.5] * 100, (0.5,) * 100, ["a", None] * 50], ids=["list", "tuple", "texts"])
def test_plain_values_are_copied_together(row: Any) -> None:
    """To look at each takes ten times as long as to copy the list."""
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        copied = own_copy(row)
    finally:
        sys.setprofile(None)
    assert copied == row
    assert type(copied) is type(row)
    assert copied is not row or type(row) is tuple
    assert len(entered) < 10


class Node(UserDict[str, int]):
    """One that leads to others, besides its data."""


def test_what_a_dict_of_the_users_leads_to_is_not_looked_into() -> None:
    """Nodes in a ring would else be walked again and again, for ever."""
    nodes = [Node(value=number) for number in range(3)]
    for at, node in enumerate(nodes):
        node.before, node.after = nodes[at - 1], nodes[(at + 1) % 3]  # type: ignore[attr-defined]
    assert owned(nodes) == nodes


@pytest.mark.libraries
@pytest.mark.parametrize("frozen", [False, True])
def test_the_fields_of_msgspec_are_copied(frozen: bool) -> None:
    """Frozen or not; the object that the function made keeps its view."""
    msgspec = pytest.importorskip("msgspec", exc_type=ImportError)
    row = msgspec.defstruct("Row", ["vector", "id"], frozen=frozen)(BUFFER[0], 7)
    (own,) = owned([row])
    assert (own.id, own.vector.base) == (7, None)
    assert np.shares_memory(row.vector, BUFFER)


@pytest.mark.libraries
def test_the_fields_of_attrs_are_copied() -> None:
    """Also where an instance cannot be changed, and has slots."""
    attrs = pytest.importorskip("attrs")
    boxes = attrs.make_class("Boxes", ["row"], frozen=True, slots=True)(BUFFER[0])
    (answer,) = owned([boxes])
    assert type(answer) is type(boxes)
    assert not np.shares_memory(answer.row, BUFFER)
    assert np.shares_memory(boxes.row, BUFFER)


def _last(row: Any) -> Any:
    return _last(row[-1]) if isinstance(row, list) else row


class Boxes(list[Any]):
    """A list with an attribute, made in a way of its own."""

    def __init__(self, label: str, box: Any) -> None:
        super().__init__([label, box])
        self.label, self.box = label, box


class Span(tuple[Any, ...]):  # noqa: SLOT001  it has an attribute
    """A tuple with an attribute, made in a way of its own."""

    label: str
    box: Any

    def __new__(cls, label: str, box: Any) -> Any:
        made = super().__new__(cls, (label, box))
        made.label, made.box = label, box
        return made


class Lone(Boxes):
    """A list of which there is one."""

    def __copy__(self) -> Any:
        return self


class Uncopied(Boxes):
    """A list that cannot be copied."""

    def __copy__(self) -> Any:
        raise TypeError("there is one of these")


@pytest.mark.parametrize("kind", [Boxes, Span])
def test_a_list_or_tuple_of_a_class_of_its_own_keeps_class_and_attributes(kind: Any) -> None:
    """Whether or not what is in it has to be copied."""
    row = kind("cat", BUFFER[0])
    (answer,) = owned([row])
    assert (type(answer), answer.label, answer[0]) == (kind, "cat", "cat")
    assert answer.box is answer[1]
    assert answer is not row
    assert row[1] is not answer[1]
    assert not np.shares_memory(answer[1], BUFFER)


@pytest.mark.parametrize("kind", [Lone, Uncopied])
def test_a_container_of_a_class_that_cannot_be_copied_is_a_plain_one(kind: Any) -> None:
    """The values count, and the function's own list is left as it is."""
    row = kind("cat", view := BUFFER[0])
    (answer,) = owned([row])
    assert answer[0] == "cat"
    assert answer[1].tolist() == [0, 1, 2]
    assert not np.shares_memory(answer[1], BUFFER)
    assert row[1] is view


class Each(list[Any]):
    """A list of which the attributes are those of its items."""

    def __getattr__(self, name: str) -> list[Any]:
        return [getattr(each, name, None) for each in self]


def test_a_list_is_not_asked_for_attributes_that_its_class_has_not() -> None:
    """It may have any: it was taken for a named tuple, and came with its view."""
    (answer,) = owned([Each([BUFFER[0], 1])])
    assert type(answer) is Each
    assert answer[1] == 1
    assert not np.shares_memory(answer[0], BUFFER)


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


def rows_of(array: Any, size: int) -> list[Any] | None:
    library = library_of(array)
    assert library is not None
    return library.rows(array, size)


def nested(layout: Any) -> Any:
    """Return a tensor of rows that differ in length."""
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


@needs_torch
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_rows_of_a_nested_tensor_may_differ_in_length(layout: Any) -> None:
    """Some have no `len`."""
    rows = rows_of(nested(layout), 2)
    assert rows is not None
    assert [row.tolist() for row in rows] == [[1, 1], [1, 1, 1]]
    assert all(row.untyped_storage().nbytes() == row.nbytes for row in rows)


@needs_torch
def test_other_tensors_have_no_faster_way() -> None:
    """Those of other layouts, and what has another number of rows."""
    assert rows_of(torch.ones(2, 3).to_sparse(), 2) is None
    assert rows_of(torch.ones(2, 3), 3) is None
    assert rows_of(torch.tensor(1.0), 1) is None
    assert rows_of(np.ones((2, 3)), 2) is None


@pytest.mark.libraries
def test_columns_of_plain_objects_are_not_looked_at_one_by_one() -> None:
    """Such as texts, of which a frame may have many."""
    pandas = pytest.importorskip("pandas")
    vector = np.zeros(2)
    frame = pandas.DataFrame({"text": ["a", None], "vector": [vector, "b"], "size": [1, 2]}, dtype=object)
    assert objects_in(frame) == {(0, 1): vector, (1, 1): "b"}
    assert objects_in(frame["text"]) == objects_in(frame["text"].to_numpy()) == {}
