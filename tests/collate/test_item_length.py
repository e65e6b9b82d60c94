"""The length of an item, where that costs nothing and runs no code of the user's."""

from __future__ import annotations

from collections import UserDict, UserList, UserString, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr

from batched._collate.item_length import length_in_columns, length_in_list, length_of
from batched._core.call import Call
from tests.kit.optional import HAS_TORCH, torch


class Slow(list[int]):
    def __len__(self) -> NoReturn:
        raise AssertionError


class Sized:
    ndim = 1
    shape = (3,)

    def __len__(self) -> NoReturn:
        raise AssertionError


class Pair(NamedTuple):
    query: str
    passage: str


@dataclass
class Asked:
    query: str
    passage: str

    @property
    def slow(self) -> NoReturn:
        raise AssertionError

    def __len__(self) -> NoReturn:
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Slots:
    query: str
    passage: str


@dataclass(frozen=True, slots=True)
class MoreSlots(Slots):
    title: str


@dataclass(frozen=True)
class BelowSlots(Slots):
    title: str


@dataclass(slots=True)
class Refusing:
    query: str

    def __getattribute__(self, name: str) -> Any:
        if name == "query":
            raise RuntimeError
        return object.__getattribute__(self, name)


class Request(BaseModel):
    query: str
    passages: list[str]
    _seen: list[str] = PrivateAttr(default=["not a field"])


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    query: str


ITEMS: list[tuple[Any, int | None]] = [
    ({"messages": [{"role": "user", "content": "x" * 20}]}, 24),
    (UserDict({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1]}), 6),
    (UserList(["ab", "c"]), 3),
    (UserString("abc"), 3),
    (deque(["ab", "c"]), 3),
    ("abc", 3),
    (b"ab", 2),
    ([1, 2, 3, 4], 4),
    ((), 0),
    (Slow([1, 2]), 2),
    (np.zeros(5), 5),
    (np.zeros((5, 2)), None),
    (np.float64(3), None),
    (np.str_("ab"), 2),
    (7, None),
    (None, None),
    ({"a": 1}, None),
    ({1, 2}, None),
    (range(3), None),
    (Sized(), None),
    (bytearray(b"abc"), 3),
    (np.zeros((1, 5)), 5),
    (("ab", "cde"), 5),
    (["ab", "cde"], 5),
    ((7, "abc", None), 3),
    ((1, 2, 3), 3),
    (tuple(range(100)), 100),
    (["ab"] * 1000, 2000),
    ((np.zeros(4), "ab"), 6),
    ({"query": "ab", "passages": ["c", "de"], "id": 7}, 5),
    ({"input_ids": [1] * 9, "attention_mask": [1] * 9}, 18),
    ({"input_ids": np.zeros((1, 9))}, 9),
    ([[1, 2], [3, 4, 5]], 5),
    (Pair("ab", "cde"), 5),
    (Asked("ab", "cde"), 5),
    (Slots("ab", "cde"), 5),
    (MoreSlots("ab", "cde", "f"), 6),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 20}]}]}, 28),
    (BelowSlots("ab", "cde", "f"), 6),
    (Request(query="ab", passages=["c", "de"]), 5),
    (Open(query="ab", passage="cde"), 5),
    (SimpleNamespace(query="ab", passage="cde"), 5),
    (Mock(), None),
    ([[[["ab", "cd", "ef"]]]], 3),
    ({}, None),
    ((("ab", "c"), ("d", ("e", "f"))), 6),
]
if HAS_TORCH:
    ITEMS += [(torch.zeros(4), 4), (torch.zeros(4, 2), None), (torch.tensor(1.0), None)]


@pytest.mark.parametrize(("item", "expected"), ITEMS, ids=lambda value: type(value).__name__)
def test_the_length_of_an_item(item: Any, expected: int | None) -> None:
    """Of what is known to be a sequence; a `__len__` of the user's is not called."""
    assert length_of(item) == expected
    one = Call().begin(None, item, 1, False, 0.0)
    many = Call().begin(None, [0, item], 2, True, 0.0)
    assert length_in_list(one, 0) == length_in_list(many, 1) == expected


def test_an_item_that_refuses_to_be_read_has_no_length() -> None:
    assert length_of(Refusing("ab")) is None


def test_several_columns_are_as_long_as_they_are_together() -> None:
    """Of single items, and of lists."""
    one = Call().begin(None, [7, "ab", "abc"], 1, False, 0.0)
    many = Call().begin(None, [[7, 8], ["ab", "abc"], ["c", ""]], 2, True, 0.0)
    assert length_in_columns(one, 0) == 5
    assert [length_in_columns(many, at) for at in range(2)] == [3, 3]
    assert length_in_columns(Call().begin(None, [7, 8], 1, False, 0.0), 0) is None


@pytest.mark.libraries
def test_an_item_of_msgspec_is_as_long_as_its_texts() -> None:
    """As one of pydantic: a web framework makes either of the body of a request."""
    msgspec = pytest.importorskip("msgspec", exc_type=ImportError)
    asked = msgspec.defstruct("Asked", ["query", "passages", "limit"])
    assert length_of(asked("abc", ["ab", "c"], 10)) == 6
