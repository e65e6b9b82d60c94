"""Callbacks and budgets are checked at the door."""

from __future__ import annotations

from functools import wraps
from typing import Any
from unittest.mock import Mock

import pytest

import batched
from batched import inference


def test_group_by_is_a_plain_function() -> None:
    """A coroutine would be a key of its own for every item."""

    async def key(item: Any) -> Any:
        return item

    for wrong in (key, "key", 3):
        with pytest.raises(TypeError, match="group_by must be a"):
            batched.dynamically(len, group_by=wrong)


def test_lengths_and_budgets_are_checked() -> None:
    """At the door, and arrays know how long they are."""
    with pytest.raises(TypeError, match="length must be a function of one item, got 3"):
        batched.dynamically(len, length=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_batch_length must be at least 1, got 0"):
        batched.dynamically(len, max_batch_length=0)
    with pytest.raises(TypeError, match="length cannot be used with arrays"):
        inference.dynamically(len, length=len)  # type: ignore[call-overload]


def test_a_callback_is_refused_for_what_it_takes_itself_only() -> None:
    """Not for what it wraps, to which it may give more; nor if it cannot say what it takes."""

    def store(record: Any, database: Any) -> None: ...

    @wraps(store)
    def with_database(*args: Any) -> None:
        store(*args, None)

    class Proxy:
        """Its signature cannot be had: Python takes it for a function, as it says so."""

        __class__: Any = property(lambda _: type(store))

        def __call__(self, record: Any) -> None: ...

    assert not hasattr(Proxy(), "__code__")
    for callback in (with_database, Proxy()):
        batched.Workers(1, initializer=callback).shutdown()
        batched.dynamically(list, on_batch=callback)


@pytest.mark.parametrize("option", ["on_batch", "group_by", "fair_by", "prepare", "finish"])
def test_a_mock_that_says_it_is_a_function_is_taken_for_one(option: str) -> None:
    """It has no code that could say more. Not in the place of the batch function."""

    def one(item: Any) -> None: ...

    options: Any = {option: Mock(spec=one, side_effect=lambda item: item)}
    fn = batched.dynamically(list, **options)
    assert fn([1]) == [1]
    fn.shutdown()
