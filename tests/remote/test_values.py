"""What crosses to another process comes as it was: arrays, tensors, objects; and what cannot, fails alone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import batched
from batched._remote import values
from batched._remote.frames import FrameError
from batched._remote.values import Pickles, plain_values
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import needs_torch, torch
from tests.kit.remote_server import process_serving
from tests.kit.script import run_script
from tests.kit.serving import HAS_UNIX, served

KINDS = [
    "?",
    "i1",
    "u2",
    "i4",
    ">i8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "S5",
    "U5",
    "M8[s]",
    "m8[us]",
    "V4",
]
LARGE = 30_000


@dataclass
class Point:
    """An object of a class that both sides know."""

    x: Any


def there_and_back(value: Any) -> Any:
    """Return `value` as it comes out of the other process: from memory that the reader lends."""
    codec = Pickles()
    payload, buffers = codec.dump(value)
    return codec.load(bytes(payload), [bytearray(each) for each in buffers])


def same(one: Any, other: Any) -> bool:
    """Whether two arrays are alike in all that a caller sees."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (LARGE,), (3, 5, 7)])
def test_arrays_of_all_kinds_and_shapes(kind: str, shape: tuple[int, ...]) -> None:
    """Each can be written to, and shares no memory with what was sent."""
    array = np.zeros(shape, kind)
    if array.size:
        array.reshape(-1).view("u1")[:] = 1 if kind == "?" else 49
    found = there_and_back(array)
    assert same(found, array)
    assert found.flags.writeable
    assert not np.shares_memory(found, array)


@pytest.mark.parametrize("rows", [6, 600])
def test_arrays_of_all_layouts(rows: int) -> None:
    """Also those that are no block of memory."""
    base = np.arange(rows * 100.0).reshape(rows, 100)
    record = np.zeros(rows * 100, [("a", "i4"), ("b", "f8", 3)])
    for array in (
        base[::2],
        base[:, ::-1],
        base.T,
        np.asfortranarray(base),
        np.broadcast_to(base[0], (rows, 100)),
        record,
        record["b"],
        base.astype(object),
        np.ma.masked_array(base, base > 7),
    ):
        found = there_and_back(array)
        assert type(found) is type(array)
        assert np.array_equal(found, array)
        assert found.dtype == array.dtype
        assert not np.shares_memory(found, array)


def test_a_large_array_is_beside_its_pickle() -> None:
    """So that nothing but the kernel copies it."""
    payload, buffers = Pickles().dump({"x": np.zeros(LARGE), "y": np.zeros(3)})
    assert [len(each) for each in buffers] == [8 * LARGE]
    assert len(payload) < 1000


def test_arrays_together_that_are_not_whole_are_no_frame() -> None:
    """Nothing is taken for an item that was not sent as one."""
    codec = Pickles()
    payload = b"".join(map(bytes, codec.dump_plain([np.zeros(3), np.ones(3)])))
    assert [*map(list, plain_values(codec, payload, 2)[0])] == [[0.0] * 3, [1.0] * 3]
    broken, _ = codec.dump((np.dtype("f4"), (2, 3), 20))
    with pytest.raises(FrameError):
        plain_values(codec, broken, 2)


@pytest.mark.parametrize("torch_", [ModuleType("torch"), None], ids=["in the middle", "refused"])
def test_values_are_sent_while_another_thread_imports_torch(
    monkeypatch: pytest.MonkeyPatch, torch_: Any
) -> None:
    """Until the import is at its end there are no tensors; it may also be refused, by a None."""
    tables: list[Any] = []
    monkeypatch.setattr(values, "_tables", tables)
    monkeypatch.setitem(sys.modules, "torch", torch_)
    found = there_and_back({"x": np.zeros(LARGE), "y": "text"})
    assert (len(found["x"]), found["y"]) == (LARGE, "text")
    assert not tables


@needs_torch
def test_tensors_of_all_kinds() -> None:
    """Those of numbers that numpy has not got, too; and each can be written to."""
    kinds = ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8", "bool", "complex64"]
    for kind in [*kinds, "float8_e5m2"]:
        for shape in ((), (0,), (0, 3), (1, 0), (4,), (LARGE,), (2, 3, 4)):
            tensor = torch.ones(shape).to(getattr(torch, kind))
            found = there_and_back(tensor)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert found.tolist() == tensor.tolist()
            found.zero_()
            assert tensor.tolist() == torch.ones(shape).to(tensor.dtype).tolist()


@needs_torch
def test_tensors_of_all_layouts() -> None:
    """Views, transposed, expanded, conjugated, sparse, nested, with gradients, and of subclasses."""
    base = torch.arange(60_000.0).reshape(300, 200)
    for kind in (torch.float32, torch.bfloat16):
        of_kind = base.to(kind)
        views = (of_kind[5:9], of_kind[::3], of_kind.T, of_kind[0].expand(100, 200), of_kind[:1].T)
        for tensor in (*views, of_kind[:1, :1].T):
            assert torch.equal(there_and_back(tensor), tensor)
    conjugated = torch.ones(3, dtype=torch.complex64).mul(1j).conj()
    assert torch.equal(there_and_back(conjugated), conjugated.resolve_conj())
    sparse = base.to_sparse()
    assert torch.equal(there_and_back(sparse).to_dense(), base)
    with warnings.catch_warnings(action="ignore"):  # they may change
        nested = torch.nested.nested_tensor([base[0, :2], base[1]])
    assert [row.tolist() for row in there_and_back(nested).unbind()] == [[0.0, 1.0], base[1].tolist()]
    leaf = torch.ones(LARGE, requires_grad=True)
    assert there_and_back(leaf).requires_grad
    assert not there_and_back(leaf.detach()).requires_grad
    parameter = torch.nn.Parameter(torch.ones(3))
    assert type(there_and_back(parameter)) is torch.nn.Parameter


@needs_torch
def test_a_part_of_a_tensor_is_sent_without_the_rest() -> None:
    """A pickle of torch's own takes the whole memory of which a view is a part."""
    payload, buffers = Pickles().dump(torch.zeros(1_000_000)[:5])
    assert len(payload) + sum(map(len, buffers)) < 2000


# -- through a server ------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[Any]:
    """A function of a server that returns its items."""

    @batched.dynamically(timeout_ms=0)
    def echo(items: list[Any]) -> list[Any]:
        return items

    with served(echo) as server:
        yield server.connect().echo


@pytest.mark.parametrize("size", [10, LARGE, 3_000_000])
def test_a_result_can_be_written_to_and_is_the_callers_own(echo: Any, size: int) -> None:
    """Two callers of one array have two; and what the first one writes, no other sees."""
    array = np.arange(float(size))
    one, other = echo(array), echo([array, array])[0]
    one[:] = 0
    assert np.array_equal(other, array)
    assert np.array_equal(echo(array), np.arange(float(size)))


def test_an_array_may_be_changed_when_submit_has_returned() -> None:
    """It is copied before: the server may be slow to take it, or not be there yet."""
    gate = Gate(lambda features: features["x"][:, :1], note=len)
    fn = batched.inference.dynamically(gate, name="f", timeout_ms=0)
    with served(fn) as server:
        client = server.connect()
        array = np.ones((1, 8_000_000))
        futures = []
        for at in range(4):
            array[:] = at
            futures.append(client.f.submit({"x": array}))
        array[:] = 9
        assert [float(each.result(PATIENCE_S)[0, 0]) for each in futures] == [0, 1, 2, 3]


def test_an_item_that_cannot_be_sent_is_refused_at_the_door(echo: Any) -> None:
    """The caller sees a TypeError; nothing of the call has been sent, and others go on."""
    for item in (threading.Lock(), lambda: 1, (each for each in "ab")):
        for call in (echo, echo.submit, lambda x: list(echo.map([x]))):
            with pytest.raises(TypeError, match="argument cannot be sent to another process"):
                call(item)
    assert echo.stats.total_accepted == 0
    assert echo(1) == 1


class Unreadable:
    """An object that has bytes, of which nothing can be made."""

    def __reduce__(self) -> Any:
        return broken, ()


def broken() -> None:
    """Fail."""
    raise LookupError("nothing can be made of it")


def test_an_item_that_cannot_be_read_fails_its_own_call(echo: Any) -> None:
    """On the side of the server as on that of the client."""
    future = echo.submit(1)
    with pytest.raises(LookupError, match="nothing can be made"):
        echo(Unreadable())
    assert future.result(PATIENCE_S) == 1
    assert echo.stats.total_accepted == 1


class Fatal:
    """An object of which the reading, or the writing, ends a process: by a module that is a script, say."""

    def __init__(self, error: type[BaseException], *, in_bytes: bool = True) -> None:
        self.error = error
        self.in_bytes = in_bytes

    def __reduce__(self) -> Any:
        if not self.in_bytes:
            raise self.error
        return ended, (self.error,)


def ended(error: type[BaseException]) -> None:
    """Raise what no one catches."""
    raise error


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_ends_a_process_as_an_item_is_read_ends_no_server(echo: Any, error: type[BaseException]) -> None:
    """It is the error of its own call, as one of the function is; calls beside it are answered."""
    other = echo.submit(1)
    assert type(echo.submit(Fatal(error)).exception(PATIENCE_S)) in {error, CancelledError}
    with pytest.raises(batched.BatchError) as caught:
        asyncio.run(asyncio.wait_for(echo.acall(Fatal(error)), PATIENCE_S))
    assert type(caught.value.__cause__) is error
    assert other.result(PATIENCE_S) == echo(1) == 1
    del caught
    gc.collect()  # of the loop that has ended, with its connection, for which the server waits


def test_what_ends_a_process_as_a_result_is_written_or_read_ends_none() -> None:
    """Neither that of the server nor that of the client; calls beside it are answered."""

    def make(items: list[Any]) -> list[Any]:
        found = {"written": Fatal(SystemExit, in_bytes=False), "read": Fatal(SystemExit)}
        return [found.get(item, item) for item in items]

    gate = Gate(make, shut=True)
    with served(batched.dynamically(gate, name="f", batch_size=8, timeout_ms=0)) as server:
        f = server.connect().f
        first = f.submit("first")
        gate.wait_for_batch()
        futures = [f.submit(item) for item in ("written", 2, "read", 4)]
        gate.open()
        assert first.result(PATIENCE_S) == "first"
        assert [type(futures[at].exception(PATIENCE_S)) for at in (0, 2)] == [TypeError, SystemExit]
        assert [futures[at].result(PATIENCE_S) for at in (1, 3)] == [2, 4]

        async def beside() -> list[Any]:
            calls = [f.acall(item) for item in ("written", 2, "read", 4)]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)

        answers = asyncio.run(beside())
        assert [type(each) for each in answers] == [TypeError, int, batched.BatchError, int]
        del answers
        gc.collect()  # of the loop that has ended, and its connection


def test_a_result_that_cannot_be_sent_or_read_fails_its_own_call() -> None:
    """Others of the same batch have theirs; in a list that keeps errors, and in a map, it is in its place."""

    def make(items: list[Any]) -> list[Any]:
        return [{"lock": threading.Lock(), "odd": Unreadable()}.get(item, item) for item in items]

    gate = Gate(make, shut=True)
    with served(batched.dynamically(gate, name="f", batch_size=8, timeout_ms=0)) as server:
        f = server.connect().f
        first = f.submit("first")
        gate.wait_for_batch()
        futures = [f.submit(item) for item in ("lock", 2, "odd", 4)]
        gate.open()
        assert first.result(PATIENCE_S) == "first"
        with pytest.raises(TypeError, match="result cannot be sent"):
            futures[0].result(PATIENCE_S)
        with pytest.raises(LookupError, match="nothing can be made"):
            futures[2].result(PATIENCE_S)
        assert [futures[at].result(PATIENCE_S) for at in (1, 3)] == [2, 4]
        kept = f.options(return_exceptions=True)
        for answers in (kept([1, "lock", 3]), list(kept.map([1, "lock", 3]))):
            assert [type(each) for each in answers] == [int, TypeError, int]
        assert isinstance(kept("lock"), TypeError)


WITHOUT_NUMPY = 'import sys; sys.modules["numpy"] = None  # as where it is not installed\n'
ITEMS = ["a", "array", "b", "array", "array", "c"]
TOGETHER: Any = {"batch_size": 6, "timeout_ms": 20_000, "adaptive": False}


def test_an_array_that_a_client_cannot_read_fails_its_own_call() -> None:
    """A web worker without numpy: answers that are sent together with an array come as ever."""

    def make(items: list[Any]) -> list[Any]:
        return [np.arange(3) if item == "array" else item for item in items]

    with served(batched.dynamically(make, name="f", **TOGETHER)) as server:
        told = run_script(f"""
        {WITHOUT_NUMPY}
        client = batched.connect({server.address!r}, token={server.token!r})
        async def main():
            calls = [client.make.acall(item) for item in {ITEMS}]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                print(answer if isinstance(answer, str) else type(answer).__name__)
        asyncio.run(main())
        """)
    assert told.split() == [each.replace("array", "ModuleNotFoundError") for each in ITEMS]


@pytest.mark.skipif(not HAS_UNIX, reason="needs unix sockets")
def test_an_array_that_a_server_cannot_read_fails_its_own_call(tmp_path: Path) -> None:
    """A server without numpy: calls that are sent together with an array are answered."""
    (tmp_path / "functions.py").write_text(
        f"{WITHOUT_NUMPY}import batched\necho = batched.dynamically(list)\n"
    )

    async def main() -> list[Any]:
        calls = [client.list.acall(np.arange(3) if item == "array" else item) for item in ITEMS]
        return await asyncio.gather(*calls, return_exceptions=True)

    with process_serving(tmp_path, "echo") as server, batched.connect(server.bind) as client:
        answers = asyncio.run(main())
    found = [each if isinstance(each, str) else type(each).__name__ for each in answers]
    assert found == [each.replace("array", "ModuleNotFoundError") for each in ITEMS]


HERE = """
import sys, types
here = types.ModuleType("only_here")
class Here: __module__ = "only_here"
here.Here = Here
sys.modules["only_here"] = here
"""
"""A class that no other process can import."""
MAPPED = """
def mapped(fn, items):
    fn(1)  # from here on several elements share a call
    for each in fn.options(return_exceptions=True).map(items):
        print(type(each).__name__ if isinstance(each, Exception) else each)
    answers = fn.map(items)
    print(next(answers))
    try:
        next(answers)
    except ModuleNotFoundError as error:
        print(*error.__notes__)
"""


def told_of_missing(name: str) -> list[str]:
    """Return what is told of a map with objects of a missing class."""
    missing = "ModuleNotFoundError"
    return ["1", missing, missing, "a", missing, "(2,)", "1", f"item 2 of a map of {name}"]


@pytest.mark.skipif(not HAS_UNIX, reason="needs unix sockets")
def test_elements_of_which_a_class_is_missing_in_the_server_fail_alone(tmp_path: Path) -> None:
    """Wherever in the element it is; the others of the map are answered, also before the error is raised."""
    (tmp_path / "functions.py").write_text("import batched\necho = batched.dynamically(list)\n")
    with process_serving(tmp_path, "echo") as server:
        told = run_script(
            HERE
            + MAPPED
            + f"""
items = [1, Here(), [{{"deep": Here()}}], "a", [Here], (2,)]
mapped(batched.connect({server.bind!r}).list, items)
"""
        )
    assert told.splitlines() == told_of_missing("list")


def test_answers_of_which_a_class_is_missing_in_the_client_fail_alone() -> None:
    """In a map: the others are there, also beside an answer that could not be sent."""
    defined: dict[str, Any] = {}
    exec(HERE, defined)
    here = defined["Here"]
    answers = {"here": here(), "deep": [{"deep": here()}], "class": here, "lock": threading.Lock()}

    def make(items: list[Any]) -> list[Any]:
        return [answers.get(item, item) for item in items]

    try:
        with served(batched.dynamically(make, timeout_ms=0)) as server:
            told = run_script(
                MAPPED
                + f"""
client = batched.connect({server.address!r}, token={server.token!r})
fn = client.make
mapped(fn, [1, "here", "deep", "a", "class", (2,)])
kept = list(fn.options(return_exceptions=True).map([1, "here", "lock"]))
print(*(type(each).__name__ for each in kept))
"""
            )
    finally:
        del sys.modules["only_here"]
    assert told.splitlines() == [*told_of_missing("make"), "int ModuleNotFoundError TypeError"]


def test_objects_of_ones_own_classes(echo: Any) -> None:
    """Of those that both sides can import."""
    found = echo(Point(np.arange(LARGE)))
    assert isinstance(found, Point)
    assert np.array_equal(found.x, np.arange(LARGE))


@pytest.mark.parametrize(
    "value",
    [
        np.array(1.5),
        np.zeros((1,) * 30),
        np.arange(3, dtype=">i4"),
        np.asfortranarray(np.ones((2, 3))),
        np.zeros((4, 0)),
    ],
    ids=["no dimension", "many", "big endian", "by columns", "empty"],
)
def test_what_arrives_does_not_depend_on_other_calls(value: Any) -> None:
    """Alone and together an array is the same: also without a dimension, with many, of other numbers."""
    orders = set()

    @batched.dynamically(timeout_ms=0)
    def layout(items: list[Any]) -> list[int]:
        orders.update((item.flags.c_contiguous, item.flags.f_contiguous) for item in items)
        return [0] * len(items)

    with served(batched.dynamically(list, timeout_ms=0), layout) as server, server.connect() as client:

        async def main() -> list[Any]:
            together = await asyncio.gather(*(client.list.acall(value) for _ in range(4)))
            await asyncio.gather(*(client.layout.acall(value) for _ in range(4)))
            return [await client.list.acall(value), *together]

        for found in asyncio.run(main()):
            assert type(found) is type(value)
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert np.array_equal(found, value)
    assert orders == {(value.flags.c_contiguous, value.flags.f_contiguous)}
