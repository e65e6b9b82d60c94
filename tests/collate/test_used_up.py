"""Items that a run may use up."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import queue
import socket
import tempfile
import weakref
from collections import UserList, deque, namedtuple
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from pydantic import BaseModel

from batched._collate.used_up import is_used_up
from tests.kit.optional import torch


@dataclass
class Upload:
    """A file and its name."""

    name: str
    file: Any


@dataclass(kw_only=True, slots=True)
class Named:
    """A file that is given by name."""

    file: Any


def mapped(shape: tuple[int, ...]) -> Any:
    """Return an array in the memory of a file."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype="u1", shape=shape, mode="w+")


class Plain:
    """An object of the user's."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def method(self) -> None:
        """Read the file, say."""


class Receiver:
    """A stream as anyio and trio have it, or a request of Starlette."""

    async def receive(self) -> bytes:
        """Return nothing."""
        return b""


class Slotted:
    """An object with a slot that is not set, and one that is."""

    __slots__ = ("file", "other")

    def __init__(self, file: Any) -> None:
        self.file = file


class Private(Slotted):
    """An object with a slot that has another name inside."""

    __slots__ = ("__hidden",)

    def __init__(self, hidden: Any) -> None:
        self.__hidden = hidden


class Rows(list[Any]):
    """A list with an attribute."""

    def __init__(self, file: Any) -> None:
        super().__init__([1])
        self.file = file


class Headers(dict[str, Any]):
    """A dict with an attribute."""

    def __init__(self, file: Any) -> None:
        super().__init__(a=1)
        self.file = file


class Model(BaseModel):
    """A model of pydantic."""

    file: Any


Pair = namedtuple("Pair", "name file")  # noqa: PYI024


class AsyncFile:
    """An upload as web frameworks have it."""

    async def read(self) -> bytes:
        """Return nothing."""
        return b""


class Hostile:
    """An item that answers no question."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Broken(list[Any]):
    """A list that cannot be walked through."""

    def __iter__(self) -> Any:
        raise RuntimeError


class Wrapper:
    """A file that is found by `__getattr__`, as `tempfile` has it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(io.BytesIO(), name)


async def _pieces() -> AsyncIterator[int]:
    yield 1


FILE = io.BytesIO()
USED_UP = [
    FILE,
    io.StringIO(),
    tempfile.SpooledTemporaryFile(),  # noqa: SIM115
    AsyncFile(),
    Wrapper(),
    Mock(spec=FILE),
    socket.socket(),
    multiprocessing.Pipe()[0],
    queue.Queue(),
    queue.SimpleQueue(),
    asyncio.Queue(),
    {"pieces": queue.Queue()},
    iter([1]),
    map(str, [1]),
    zip([1], [2], strict=True),
    (each for each in [1]),
    _pieces(),
    [1, FILE],
    ("a", FILE),
    {FILE},
    {"file": FILE},
    {"files": [FILE]},
    {"rows": iter([])},
    MappingProxyType({"file": FILE}),
    Upload("a", FILE),
    Upload("a", [FILE]),
    Pair("a", FILE),
    [Hostile(), FILE],
    Named(file=FILE),
    Plain(FILE),
    Plain([FILE]),
    Slotted(FILE),
    Private(FILE),
    Rows(FILE),
    Headers(FILE),
    partial(len, FILE),
    partial(len, file=FILE),
    Model(file=FILE),
    SimpleNamespace(file=FILE),
    deque([FILE]),
    UserList([FILE]),
    np.array([FILE, None], dtype=object),
    [*range(64), FILE],
    {"messages": [{"content": [FILE]}]},
    {"file": FILE}.values(),
    {FILE: "name"},
    FILE.read,
    iter([1]).__next__,
    partial(FILE.read, 10),
    Receiver(),
]
LASTING = [
    None,
    1,
    1.5,
    "text",
    b"bytes",
    bytearray(b"bytes"),
    np.ones((2, 3)),
    np.float32(1),
    torch.ones(2),
    range(3),
    [1, 2],
    ("a", "b"),
    {"a": [1, {"b": "c"}]},
    {1, 2},
    Upload("a", b"bytes"),
    Pair("a", None),
    Path("a"),
    Hostile(),
    object(),
    [],
    {},
    Plain("a"),
    Slotted("a"),
    Private("a"),
    Rows("a"),
    Headers("a"),
    partial(len, "a"),
    Model(file="a"),
    np.array(["a", None], dtype=object),
    Plain,
    Mock(),
    MagicMock(),
    {"image": Mock()},
    Mock(spec=Plain),
    mapped((4, 2))[1],
    Plain("a").method,
    {"done": Plain(FILE).method},
    len,
    [[[[[[FILE]]]]]],  # it does not look so deep
]


@pytest.mark.parametrize("item", USED_UP, ids=lambda item: type(item).__name__)
def test_iterators_and_open_files_are_used_up_also_in_containers(item: Any) -> None:
    """And in the fields of dataclasses and named tuples."""
    assert is_used_up(item)


def test_coroutines_can_be_awaited_once() -> None:
    """So an item that is one is used up."""
    coroutine = AsyncFile().read()
    assert is_used_up(coroutine)
    coroutine.close()


@pytest.mark.parametrize("item", LASTING, ids=lambda item: type(item).__name__)
def test_all_else_lasts(item: Any) -> None:
    """It is the same for a second run, unless the function changes it, which does not show."""
    assert not is_used_up(item)


@pytest.mark.libraries
@pytest.mark.parametrize("loads", [False, True])
def test_an_image_keeps_what_it_has_read_of_its_file(loads: bool) -> None:
    """So a batch with one that is broken runs again."""
    images = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    images.new("RGB", (2, 2)).save(file, "PNG")
    image = images.open(file)
    if loads:
        image.load()
    assert not is_used_up({"image": image})


def test_a_list_that_cannot_be_walked_through_lasts() -> None:
    """Its error is not one of the batch."""
    assert not is_used_up(Broken([1]))


def test_of_a_long_list_the_first_elements_are_looked_at() -> None:
    """A list of a million tokens takes no time."""
    looked = []

    class Element:
        @property
        def read(self) -> None:
            looked.append(self)

    assert not is_used_up([Element() for _ in range(10_000)])
    assert len(looked) == 4096


def test_a_weak_proxy_is_what_it_stands_for() -> None:
    """Its type has the methods of an iterator, whatever that is."""
    plain, numbers = Plain(1), (number for number in range(3))
    gone = weakref.proxy(Plain(1))
    assert not is_used_up(weakref.proxy(plain))
    assert not is_used_up(gone)
    assert is_used_up(weakref.proxy(numbers))
    holds = Plain(numbers)
    assert is_used_up(weakref.proxy(holds))
