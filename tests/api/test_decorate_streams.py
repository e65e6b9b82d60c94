"""What a batch function that yields may be decorated with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from copy import copy
from typing import Any

import pytest

import batched
import batched.inference
from tests.kit.kept import driver_of


def test_what_does_not_go_with_streams_is_refused() -> None:
    """At decoration."""

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items

    for options in ({"cache": {}}, {"cache_key": str}, {"prepare": list}, {"finish": list}):
        (name,) = options
        with pytest.raises(TypeError, match=f"^{name} cannot be used with a function that streams: "):
            batched.dynamically(generate, **options)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="cannot stream"):
        batched.inference.dynamically(generate)
    with pytest.raises(TypeError, match="max_pieces=5 is only for a function that streams"):
        batched.dynamically(lambda items: items, max_pieces=5)
    with pytest.raises(TypeError, match="continuous=True is only for a function that streams"):
        batched.dynamically(lambda items: items, continuous=True)
    with pytest.raises(TypeError, match="max_pieces cannot be used with arrays"):
        batched.inference.dynamically(lambda features: features, max_pieces=5)  # type: ignore[call-overload]


def plain(items: list[int]) -> Iterator[list[int]]:
    """Drop what `yield` returns."""
    for _ in range(3):
        yield items


def with_a_last_word(items: list[int]) -> Iterator[list[int]]:
    """Do so in each of several places in loops."""
    yield items
    while items:
        with suppress(ValueError):
            if len(items) > 1:
                yield items
            else:
                yield items[:1]


async def later(items: list[int]) -> AsyncIterator[list[int]]:
    """Await in the loop, too."""
    while True:
        await asyncio.sleep(0)
        yield items


async def each_later(items: list[int]) -> AsyncIterator[list[int]]:
    """Hand on what another one yields."""
    async for pieces in later(items):
        yield pieces


class Model:
    """Is called."""

    def __call__(self, items: list[int]) -> Iterator[list[int]]:
        """Drop what `yield` returns."""
        for _ in items:
            yield items


@pytest.mark.parametrize("function", [plain, with_a_last_word, later, each_later, Model()])
def test_a_function_that_drops_what_its_yield_returns_is_not_refilled(function: Any) -> None:
    """As long as the number of its pieces is right, its callers would get pieces of other items."""
    with pytest.raises(TypeError, match="does not use what `yield` returns, so with continuous=True"):
        batched.dynamically(function, continuous=True)
    assert batched.dynamically(function).explain()


def once(items: list[int]) -> Iterator[list[int]]:
    """End after one step: no item is left, and none has joined."""
    yield items


def in_a_condition(items: list[int]) -> Iterator[list[int]]:
    """Use it where it stands."""
    while not (yield items):
        pass


def handed_on(items: list[int]) -> Iterator[list[int]]:
    """Have another generator told."""
    while items:
        yield from in_a_condition(items)


async def awaited(items: list[int]) -> AsyncIterator[list[int]]:
    """Await in the loop, too."""
    while True:
        await asyncio.sleep(0)
        change = yield items
        items = [*items, *change.joined]


def outside_of_the_loop(items: list[int]) -> Iterator[list[int]]:
    """Use it somewhere."""
    change = yield items
    while not change.joined:
        yield items


@pytest.mark.parametrize("function", [once, in_a_condition, handed_on, awaited, outside_of_the_loop])
def test_a_function_that_may_use_what_its_yield_returns_is_refilled(function: Any) -> None:
    """Whether it does so rightly cannot be seen."""
    assert batched.dynamically(function, continuous=True).explain()


def test_a_function_that_streams_still_does_with_changed_options_and_as_a_copy() -> None:
    """Its options are of a kind of their own, which `configure` and a pickle keep."""

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items

    fn = batched.dynamically(generate)
    fn.configure(batch_size=2)
    for each in (fn, copy(fn)):
        assert driver_of(each).options.streams
        assert list(each.stream(1)) == [1]
    assert not driver_of(batched.dynamically(list)).options.streams
