"""Results that are views of what the function keeps: each caller has its own."""

from __future__ import annotations

import pickle
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.optional import HAS_TORCH, needs_torch, torch

LENGTH = 1000


class Pair(NamedTuple):
    """A result of two parts."""

    score: float
    row: Any


@dataclass(frozen=True, slots=True)
class Found:
    """A result that cannot be changed, with an array that can."""

    score: float
    row: Any


@dataclass
class Single:
    """A result of which there is one."""

    row: Any

    def __copy__(self) -> Any:
        raise TypeError("there is one of these")


class Unmade(Pair):
    """A named tuple that is not made of any parts."""

    @classmethod
    def _make(cls, iterable: Any) -> Any:
        raise TypeError("not of these")


class Unread(dict[str, Any]):
    """A dict that does not show its values."""

    def values(self) -> Any:
        raise RuntimeError("not shown")


class Unwalked(list[Any]):
    """A list that cannot be walked through."""

    def __iter__(self) -> Any:
        raise RuntimeError("no way")

    def __getitem__(self, at: Any) -> Any:
        raise RuntimeError("no way")


@dataclass
class WithShort:
    """A result with an attribute that is no field."""

    row: Any

    def __post_init__(self) -> None:
        self.short = self.row[:2]


class Scored(BaseModel):
    """A result of pydantic."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    score: float
    row: Any


def only(row: Any) -> Any:
    """Return the array that a nested result has."""
    if isinstance(row, Pair | Found | Scored | SimpleNamespace):
        return row.row
    if isinstance(row, UserDict | UserList):
        return only(row.data)
    if isinstance(row, deque):
        return only(list(row))
    if isinstance(row, dict):
        return only(next(iter(row.values())))
    return only(row[1]) if isinstance(row, list | tuple) else row


NESTS: dict[str, Any] = {
    "row": lambda row: row,
    "tuple": lambda row: ("label", row),
    "list": lambda row: [0.5, row],
    "dict": lambda row: {"embedding": row, "score": 0.5},
    "named tuple": lambda row: Pair(0.5, row),
    "dataclass": lambda row: Found(0.5, row),
    "pydantic": lambda row: Scored(score=0.5, row=row),
    "namespace": lambda row: SimpleNamespace(score=0.5, row=row),
    "user dict": lambda row: UserDict(embedding=row),
    "user list": lambda row: UserList([0.5, row]),
    "deque": lambda row: deque([0.5, row], maxlen=2),
    "ordered dict": lambda row: OrderedDict(embedding=row),
    "dict of lists": lambda row: {"layers": [None, row]},
}
KINDS = {"numpy": np.ones, "torch": torch.ones}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outer", [list, tuple, deque])
def test_views_in_any_container_are_copied(flavour: Flavour, kind: str, nest: str, outer: Any) -> None:
    """A buffer that is used again changes no answer that was given, and an answer keeps no buffer alive."""
    buffer = KINDS[kind]((4, LENGTH))
    gate = Gate(lambda xs: outer(NESTS[nest](row) for row in buffer[: len(xs)]), shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(4)]
    gate.open()
    answers = [future.result(PATIENCE_S) for future in futures]
    buffer[:] = 9
    first, *others = map(only, answers)
    first += 1
    assert float(first.sum()) == 2 * LENGTH
    assert all(float(row.sum()) == LENGTH for row in others)
    assert type(answers[0]) is type(NESTS[nest](first))
    assert len(pickle.dumps(answers[0])) < 12 * LENGTH
    buffer[:] = 1
    whole = flavour.call(fn, [1, 2, 3, 4])
    buffer[:] = 9
    assert [float(only(row).sum()) for row in whole] == [LENGTH] * 4


@pytest.mark.parametrize("slots", [True, False])
def test_what_the_class_of_a_result_has_is_not_the_results(flavour: Flavour, slots: bool) -> None:
    """An array of the class of all rows is no row that several callers have."""

    class Scored:
        score: float
        weights: ClassVar[Any] = np.ones(3)

    made = dataclass(slots=slots)(Scored)
    fn = flavour.decorate(lambda xs: list(map(made, xs)), batch_size=2, timeout_ms=0)
    for answer in flavour.call(fn, [1.0, 2.0]):
        assert answer.weights is made.weights
        assert "weights" not in getattr(answer, "__dict__", {})


def test_views_beside_the_fields_of_a_dataclass_are_copied(flavour: Flavour) -> None:
    """As an attribute that it makes of a field."""
    buffer = np.ones((4, 3))
    fn = flavour.decorate(lambda xs: list(map(WithShort, buffer[: len(xs)])), timeout_ms=0)
    answer = flavour.call(fn, 1)
    buffer[:] = 9
    assert answer.row.tolist() == [1, 1, 1]
    assert answer.short.tolist() == [1, 1]


@pytest.mark.parametrize("make", [lambda row: Single(row), lambda row: Unmade(0.5, row)])
def test_a_result_that_cannot_be_copied_is_handed_out_as_it_is(flavour: Flavour, make: Any) -> None:
    """And the other rows of its batch are copied."""
    buffer = np.ones((4, 3))
    gate = Gate(lambda xs: [make(row) if x else row for x, row in zip(xs, buffer, strict=False)], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(2)]
    gate.open()
    one, other = [future.result(PATIENCE_S) for future in futures]
    buffer[0] = 9
    assert one.tolist() == other.row.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", [Unread, Unwalked])
def test_a_result_that_cannot_be_looked_into_fails_no_other_call(flavour: Flavour, kind: Any) -> None:
    """It is handed out as it is."""
    result = kind([("a", 1)])
    gate = Gate(lambda xs: [result if x else "other" for x in xs], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(2)]
    gate.open()
    other, found = [future.result(PATIENCE_S) for future in futures]
    assert other == "other"
    assert type(found) is kind


class Uncopied(np.ndarray):
    """An array that has no copies."""

    def copy(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise ValueError("not copied")


class Unasked(torch.Tensor if HAS_TORCH else object):  # type: ignore[misc]
    """A tensor that answers nothing."""

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        raise NotImplementedError(function)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("outer", [list, tuple])
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.ones((2, 3))[0].view(Uncopied),
        pytest.param(lambda: torch.ones(3).as_subclass(Unasked), marks=needs_torch),
    ],
    ids=["array", "tensor"],
)
def test_an_array_of_a_class_that_fails_is_handed_out_as_it_is(
    flavour: Flavour, make: Any, outer: Any, others: int
) -> None:
    """Alone, in company of its kind, and among other arrays, which are copied."""
    buffer = np.ones((3, 2))
    for row in (lambda x: buffer[x], lambda _: make()):
        gate = Gate(lambda xs, row=row: outer(row(x) if x else make() for x in xs), shut=True)
        fn = flavour.decorate(gate, batch_size=1 + others, timeout_ms=60_000, isolate_errors=False)
        futures = [flavour.start(fn, index) for index in range(1 + others)]
        gate.open()
        found, *rest = [future.result(PATIENCE_S) for future in futures]
        assert type(found) is type(make())
        buffer[:] = 9
        assert all(type(each) is type(found) or each.tolist() == [1, 1] for each in rest)
        buffer[:] = 1


def change(answer: Any) -> None:
    """Change what a caller has got: what is in it, or else itself."""
    inner = next(iter(answer.values() if isinstance(answer, dict) else answer))
    if isinstance(inner, list):
        inner.append("mine")
    else:
        answer.clear()


SHARED: dict[str, Any] = {
    "dict": lambda: {"tags": []},
    "list": lambda: [[1]],
    "ordered dict": lambda: OrderedDict(tags=[]),
    "deque": lambda: deque([[1]]),
    "set": lambda: {1},
    "bytearray": lambda: bytearray(b"a"),
    "tuple": lambda: ([],),
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("outer", [list, tuple, deque])
def test_a_container_that_is_the_result_of_two_callers_is_copied_for_one(
    flavour: Flavour, kind: str, outer: Any
) -> None:
    """As of a function that answers from what it has found by key, and is asked for one key twice."""
    gate = Gate(lambda keys: outer(dict.fromkeys(keys, SHARED[kind]()).get(key) for key in keys), shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, *asked) for asked in ((1,), (1,), ([2, 1],))]
    gate.open()
    one, two, [_, three] = [future.result(PATIENCE_S) for future in futures]
    assert one == two == three == SHARED[kind]()
    assert type(one) is type(two) is type(three) is type(SHARED[kind]())
    seen = repr(two)
    for answer in (one, three):
        change(answer)
    assert repr(two) == seen


@needs_torch
def test_rows_made_in_inference_mode_are_copied(flavour: Flavour) -> None:
    """As `encode(convert_to_numpy=False)` returns them; they stay what the function made."""

    def encode(xs: list[int]) -> Any:
        with torch.inference_mode():
            return list(torch.ones(64, LENGTH)[: len(xs)])

    fn = flavour.decorate(encode, batch_size=4, timeout_ms=0)
    for row in [flavour.call(fn, 1), *flavour.call(fn, [1, 2])]:
        assert row.untyped_storage().nbytes() == row.nbytes
        assert row.is_inference()


@needs_torch
@pytest.mark.parametrize("outer", [list, lambda out: out, lambda out: [{"row": row} for row in out]])
def test_the_only_row_of_a_buffer_is_copied_in_inference_mode(flavour: Flavour, outer: Any) -> None:
    """It has all of the buffer's memory: as of a CUDA graph, which writes its next outputs over the last."""
    with torch.inference_mode():
        buffer = torch.zeros(1, 3)

    @torch.inference_mode()
    def encode(xs: list[int]) -> Any:
        buffer[0] = xs[0]
        return outer(buffer)

    fn = flavour.decorate(encode, batch_size=1, timeout_ms=0)
    answers = [only(flavour.call(fn, x)) for x in range(3)]
    assert [answer.tolist() for answer in answers] == [[x] * 3 for x in range(3)]


@needs_torch
@pytest.mark.parametrize("made", ["from_numpy", "as_tensor", "from_dlpack"])
def test_tensors_that_show_the_memory_of_another_library_are_copied(flavour: Flavour, made: str) -> None:
    """They are no views in the eyes of torch."""
    buffer = np.zeros((4, LENGTH), dtype=np.float32)

    def encode(xs: list[int]) -> Any:
        buffer[: len(xs)] = np.array(xs)[:, None]
        return [getattr(torch, made)(row) for row in buffer[: len(xs)]]

    fn = flavour.decorate(encode, batch_size=4, timeout_ms=0)
    first = flavour.call(fn, 1)
    flavour.call(fn, [2, 3])
    assert first.tolist() == [1] * LENGTH


def test_memory_views_are_copied(flavour: Flavour) -> None:
    """With their format; of bytes they need not be."""
    buffer = np.ones((4, 3), dtype=np.float32)
    fn = flavour.decorate(lambda xs: [memoryview(row) for row in buffer[: len(xs)]], timeout_ms=0)
    row = flavour.call(fn, 1)
    buffer[:] = 9
    assert row.tolist() == [1, 1, 1]
    assert row.format == "f"
    kept = b"kept"
    fn = flavour.decorate(lambda xs: [memoryview(kept) for _ in xs], timeout_ms=0)
    assert flavour.call(fn, 1).obj is kept


def test_rows_of_structured_arrays_are_copied(flavour: Flavour) -> None:
    """They are no arrays, and yet views."""
    buffer = np.ones(4, dtype=[("x", "f4"), ("label", "U3")])
    fn = flavour.decorate(lambda xs: buffer[: len(xs)], timeout_ms=0)
    row = flavour.call(fn, 1)
    buffer["x"] = 9
    assert row["x"] == 1
    assert row.dtype == buffer.dtype


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_an_array_that_is_the_row_of_two_callers_is_copied_for_one(flavour: Flavour, kind: str) -> None:
    """Also where it lies in a row."""
    for nest in (NESTS["row"], NESTS["dict"]):
        gate = Gate(lambda xs, nest=nest: [nest(KINDS[kind](3))] * len(xs), shut=True)
        fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
        futures = [flavour.start(fn, index) for index in range(2)]
        gate.open()
        one, other = [only(future.result(PATIENCE_S)) for future in futures]
        one += 1
        assert other.tolist() == [1, 1, 1]


@needs_torch
@pytest.mark.parametrize("nest", [NESTS["row"], NESTS["dict"]], ids=["row", "dict"])
@pytest.mark.parametrize(
    "again",
    [lambda kept: kept.detach(), lambda kept: kept.data, lambda kept: torch.nn.Parameter(kept)],
    ids=["detach", "data", "parameter"],
)
def test_tensors_that_share_their_memory_without_a_view_are_copied_for_one(
    flavour: Flavour, again: Any, nest: Any
) -> None:
    """As torch calls neither of them a view."""
    kept = torch.ones(3)
    gate = Gate(lambda xs: [nest(again(kept)) for _ in xs], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(2)]
    gate.open()
    one, other = [only(future.result(PATIENCE_S)).detach() for future in futures]
    one += 1
    assert other.tolist() == [1, 1, 1]


@pytest.mark.parametrize("outer", [list, tuple])
@pytest.mark.parametrize("first", [ValueError("no face"), None, "nothing", 0])
def test_rows_of_several_types_are_each_looked_at(flavour: Flavour, first: Any, outer: Any) -> None:
    """Whether a row is copied depends on its own type, wherever the others are."""
    buffer = np.ones((3, 2))

    def embed(images: list[Any]) -> Any:
        return outer(first if image is None else buffer[at] for at, image in enumerate(images))

    fn = flavour.decorate(embed, timeout_ms=0)
    for images in ([None, 1, 2], [1, None, 2], [1, 2, None]):
        answers = flavour.call(fn.options(return_exceptions=True), images)
        buffer[:] = 9
        for image, answer in zip(images, answers, strict=True):
            if image is None:
                assert str(answer) == str(first)
            else:
                assert answer.tolist() == [1, 1]
        buffer[:] = 1


class Model:
    """A result with the names of an array's attributes."""

    base = "not None"
    untyped_storage = clone = None

    def copy(self) -> Any:
        """Say that it was called."""
        raise AssertionError

    __copy__ = __deepcopy__ = copy


@pytest.mark.parametrize("outer", [list, tuple, deque])
@pytest.mark.parametrize("make", [Model, Mock, lambda: Mock(spec=np.ndarray), object])
def test_what_only_looks_like_an_array_is_handed_out_as_it_is(
    flavour: Flavour, make: Any, outer: Any
) -> None:
    """Mocks and models have any attribute."""
    rows = [make(), make()]
    fn = flavour.decorate(lambda xs: outer(rows[: len(xs)]), timeout_ms=0)
    one, other = flavour.call(fn, [1, 2])
    assert one is rows[0]
    assert other is rows[1]


def test_what_holds_no_view_is_the_object_that_the_function_made(flavour: Flavour) -> None:
    """Containers are not copied for nothing, nor are arrays that own their memory."""
    rows: list[Any] = [
        {"label": "x"},
        [1.5] * 100,
        (np.ones(2), "x"),
        np.ones(3),
        bytearray(b"x"),
        {1, 2},
        [],
    ]
    fn = flavour.decorate(lambda xs: [rows[x] for x in xs], timeout_ms=0)
    answers = flavour.call(fn, list(range(len(rows))))
    assert all(answer is row for answer, row in zip(answers, rows, strict=True))


class Marked(np.ndarray[Any, Any]):
    """A kind of array."""


MAKES = {"masked": np.ma.masked_array, "marked": lambda rows: np.array(rows).view(Marked), "plain": np.array}


@pytest.mark.libraries
@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16"])
@pytest.mark.parametrize("nest", [lambda image: image, lambda image: {"mask": [image]}])
@pytest.mark.parametrize("size", [1, 3])
def test_images_that_show_an_array_are_copied(flavour: Flavour, mode: str, nest: Any, size: int) -> None:
    """Pillow makes them of an array of some modes without a copy: `Image.fromarray(masks[0])`."""
    image = pytest.importorskip("PIL.Image")
    kind = np.uint16 if mode == "I;16" else np.uint8
    masks: Any = np.ones((3, 4, 4, 4) if mode == "RGBA" else (3, 4, 4), kind)
    fn = flavour.decorate(
        lambda xs: [nest(image.fromarray(masks[at])) for at in range(len(xs))], timeout_ms=0
    )
    answers = flavour.call(fn, list(range(size)))
    masks[:] = 9
    for answer in answers:
        own = answer["mask"][0] if isinstance(answer, dict) else answer
        assert own.mode == mode
        assert np.asarray(own).max() == 1


@pytest.mark.libraries
@pytest.mark.parametrize("nest", [lambda row: row, lambda row: {"row": [row]}], ids=["bare", "nested"])
@pytest.mark.parametrize("kind", ["rows", "parts", "mixed", "columns"])
def test_rows_of_a_table_keep_no_other_rows(flavour: Flavour, kind: str, nest: Any) -> None:
    """Of a frame of pandas: rows, frames of one row, also with columns of several types, and columns."""
    pandas = pytest.importorskip("pandas")
    made: list[Any] = []

    def rows(xs: list[int]) -> list[Any]:
        frame = pandas.DataFrame({name: [x + 0.5 for x in xs] for name in "abc"})
        if kind == "mixed":
            frame.insert(0, "text", [str(x) for x in xs])
        if kind == "columns":
            frame = frame.T
        at = range(len(xs))
        made[:] = {
            "rows": lambda: [frame.iloc[number] for number in at],
            "parts": lambda: [frame.iloc[number : number + 1] for number in at],
            "mixed": lambda: [frame.iloc[number : number + 1] for number in at],
            "columns": lambda: [frame.iloc[:, number] for number in at],
        }[kind]()
        return [nest(row) for row in made]

    answers = flavour.call(flavour.decorate(rows, timeout_ms=0), list(range(16)))
    found = [answer["row"][0] if isinstance(answer, dict) else answer for answer in answers]
    assert all(one.equals(other) for one, other in zip(found, made, strict=True))
    for answer in found:
        numbers = answer if answer.ndim == 1 else answer["a"]
        memory = numbers.values
        while memory.base is not None:
            memory = memory.base
        assert memory.nbytes <= 4 * 8


@pytest.mark.libraries
@pytest.mark.parametrize("rows", [1_000, 20_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "kind",
    ["frame", "column", "mixed", "wide", "part", "column of two", "part of a part", "column of memory"],
)
def test_a_large_table_is_copied_only_if_it_is_a_part(flavour: Flavour, kind: str, rows: int) -> None:
    """To copy a million numbers takes a hundred times as long as a look at them; a small table is copied."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.zeros(2 * rows), "b": np.ones(2 * rows)})
    table = {
        "frame": lambda: frame,
        "column": lambda: frame[["a"]].copy()["a"],
        "mixed": lambda: frame.assign(text="x"),
        "wide": lambda: pandas.concat([frame.add_prefix(f"{at}") for at in range(40)], axis=1),
        "part": lambda: frame.iloc[:rows],
        "column of two": lambda: frame["b"],
        "part of a part": lambda: frame.copy().assign(b=frame["b"]),
        "column of memory": lambda: frame.copy().assign(
            b=pandas.Series(np.frombuffer(bytearray(16 * rows)), copy=False)
        ),
    }[kind]()
    answer = flavour.call(flavour.decorate(lambda xs: [table for _ in xs], timeout_ms=0), 1)
    assert answer.equals(table)
    assert (answer is table) == (rows == 20_000 and kind in {"frame", "column", "mixed"})


@pytest.mark.libraries
@pytest.mark.parametrize("kind", ["frame", "column"])
def test_rows_of_a_table_without_an_array_of_numpy_keep_no_other_rows(flavour: Flavour, kind: str) -> None:
    """Of categories, for example: there is no memory that tells whether they are parts."""
    pandas = pytest.importorskip("pandas")

    def rows(xs: list[int]) -> list[Any]:
        column = pandas.Series(pandas.Categorical([str(x) for x in xs]))
        table = column if kind == "column" else column.to_frame()
        return [table.iloc[at : at + 1] for at in range(len(xs))]

    answers = flavour.call(flavour.decorate(rows, timeout_ms=0), list(range(16)))
    for at, answer in enumerate(answers):
        column = answer if kind == "column" else answer.iloc[:, 0]
        assert column.tolist() == [str(at)]
        memory = column.array._codes  # noqa: SLF001
        while memory.base is not None:
            memory = memory.base
        assert memory.nbytes == 1


@pytest.mark.libraries
def test_an_image_that_owns_its_memory_or_is_in_a_file_is_handed_out_as_it_is(
    flavour: Flavour, tmp_path: Path
) -> None:
    """One that was opened is read when it is needed, from its file."""
    image = pytest.importorskip("PIL.Image")
    image.new("L", (4, 4)).save(tmp_path / "image.bmp")
    with image.open(tmp_path / "image.bmp") as opened:
        rows = [image.new("L", (4, 4)), opened]
        fn = flavour.decorate(lambda xs: [rows[x] for x in xs], timeout_ms=0)
        answers = flavour.call(fn, [0, 1])
    assert all(answer is row for answer, row in zip(answers, rows, strict=True))


def _array_of(*objects: Any) -> Any:
    made = np.empty(len(objects), object)
    for at, each in enumerate(objects):
        made[at] = each
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: [_array_of(row, "label") for row in rows],
        lambda rows: list(np.stack([_array_of(row, [row]) for row in rows])),
        lambda rows: [{"row": _array_of([row])} for row in rows],
    ],
    ids=["arrays", "rows of one array", "nested"],
)
@pytest.mark.parametrize("size", [1, 3])
def test_views_in_arrays_of_objects_are_copied(flavour: Flavour, make: Any, size: int) -> None:
    """The function may use its buffer again; its own arrays stay what they are."""
    buffer = np.zeros((size, 4))
    made: list[Any] = []

    def rows(xs: list[int]) -> list[Any]:
        made[:] = make(buffer)
        return made

    answers = flavour.call(flavour.decorate(rows, timeout_ms=0), list(range(size)))
    buffer[:] = 9
    for answer, own in zip(answers, made, strict=True):
        assert str(answer).count("9.") == 0
        assert str(own).count("9.") > 0


@pytest.mark.libraries
@pytest.mark.parametrize("kind", ["rows", "parts", "columns"])
def test_views_in_columns_of_objects_are_copied(flavour: Flavour, kind: str) -> None:
    """Of a frame with a column of vectors."""
    pandas = pytest.importorskip("pandas")
    buffer = np.zeros((3, 4))

    def rows(xs: list[int]) -> list[Any]:
        frame = pandas.DataFrame({"text": [str(x) for x in xs], "vector": list(buffer)})
        if kind == "columns":
            return [frame["vector"], frame["vector"], frame]
        return [frame.iloc[x] if kind == "rows" else frame.iloc[x : x + 1] for x in xs]

    answers = flavour.call(flavour.decorate(rows, timeout_ms=0), [0, 1, 2])
    buffer[:] = 9
    for answer in answers:
        cells = answer.to_frame() if answer.ndim == 1 else answer
        vectors = [cell for cell in cells.to_numpy().flat if isinstance(cell, np.ndarray)]
        assert vectors
        assert all(vector.tolist() == [0, 0, 0, 0] and vector.base is None for vector in vectors)


def test_callers_of_a_cache_share_no_list_in_an_array_of_objects(flavour: Flavour) -> None:
    """As of lists in a list."""
    fn = flavour.decorate(lambda xs: [_array_of([x]) for x in xs], cache={}, timeout_ms=0)
    flavour.call(fn, 1)[0].append("changed")
    assert flavour.call(fn, 1).tolist() == [[1]]


@pytest.mark.parametrize("make", MAKES)
def test_copies_keep_the_class_of_an_array(flavour: Flavour, make: str) -> None:
    """Masks too."""
    rows = MAKES[make]([[1.0, 2.0], [3.0, 4.0]])
    if make == "masked":
        rows[0, 1] = np.ma.masked
    fn = flavour.decorate(lambda xs: [rows[x] for x in xs], timeout_ms=0)
    answers = flavour.call(fn, [0, 1])
    for answer, row in zip(answers, rows, strict=True):
        assert type(answer) is type(row)
        assert answer.tolist() == row.tolist()
        assert not np.shares_memory(answer, row)


def test_a_numpy_array_that_shows_a_tensor_is_copied(flavour: Flavour) -> None:
    """Its base is no array of numpy's."""
    buffer = torch.ones(4, 3)
    fn = flavour.decorate(lambda xs: [row.numpy() for row in buffer[: len(xs)]], timeout_ms=0)
    row = flavour.call(fn, 1)
    buffer[:] = 9
    assert row.tolist() == [1, 1, 1]


def test_pieces_of_a_stream_are_copied(streaming: Flavour) -> None:
    """As results are."""
    buffer = np.zeros((4, 2))

    def steps(xs: list[int]) -> Any:
        for step in (1, 2):
            buffer[:] = step
            yield list(buffer[: len(xs)])

    fn = streaming.decorate(steps, timeout_ms=0)
    assert [piece.tolist() for piece in streaming.stream(fn, 0)] == [[1, 1], [2, 2]]


GROWING: dict[str, tuple[Callable[[], Any], Callable[[Any, int], object]]] = {
    "list": (list, list.append),
    "lists": (lambda: {"tokens": []}, lambda state, step: state["tokens"].append(step)),
    "dict": (dict, lambda state, step: state.update({step: step})),
    "array": (lambda: np.zeros(2), lambda state, step: state.__iadd__(step)),
    "array in a tuple": (lambda: ("a", np.zeros(2)), lambda state, step: state[1].__iadd__(step)),
    "bytes": (bytearray, bytearray.append),
    "tensor": (lambda: torch.zeros(2), lambda state, step: state.add_(step)),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_torch if kind == "tensor" else []) for kind in GROWING]
)
@pytest.mark.parametrize("columns", [False, True])
def test_pieces_do_not_change_as_their_generator_goes_on(
    streaming: Flavour, kind: str, columns: bool
) -> None:
    """As of one that adds to what it has yielded, and yields it again: callers read their pieces later."""
    make, add = GROWING[kind]

    def steps(xs: list[int]) -> Any:
        states = [make() for _ in xs]
        for step in range(1, 4):
            for state in states:
                add(state, step)
            yield states

    def steps_of_two(xs: list[int], ys: list[int]) -> Any:
        yield from steps(xs)

    fn = streaming.decorate(steps_of_two if columns else steps, batch_size=2, timeout_ms=60_000)
    expected, state = [], make()
    for step in range(1, 4):
        add(state, step)
        expected.append(repr(state))
    asked = [(1, 2), (3, 4)] if columns else [(1,), (2,)]
    streams = [streaming.stream(fn, *each) for each in asked]
    until(lambda: fn.stats.total_processed == 2)
    assert [[repr(piece) for piece in stream] for stream in streams] == [expected, expected]


def test_outputs_of_arrays_are_copied(flavour: Flavour) -> None:
    """Also lists and dicts of outputs that the function keeps."""
    kept = np.ones((4, 3))

    def features(given: dict[str, Any]) -> Any:
        size = len(given["x"])
        return {"out": [kept[:size], kept[:size]], "copy": kept[:size].T.T}

    fn = flavour.decorate_arrays(features, timeout_ms=0)
    answer = flavour.call(fn, x=np.ones((4, 2)))
    kept[:] = 9
    one, other = answer["out"]
    one += 1
    assert other.tolist() == [[1, 1, 1]] * 4
    assert answer["copy"].tolist() == [[1, 1, 1]] * 4
