"""What type checkers make of functions that yield, and of their streams.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from typing import assert_type

import batched
from batched import AsyncStream, Stream


@batched.dynamically
def tokens(prompts: list[str]) -> Iterator[list[str]]:
    yield prompts


@batched.dynamically(batch_size=4)
def ending(prompts: list[str]) -> Iterator[list[int | batched.Done]]:
    yield [batched.DONE for _ in prompts]


@batched.dynamically
def generator(prompts: list[str]) -> Generator[list[str], None, None]:
    yield prompts


@batched.dynamically
async def asynchronous(prompts: list[str]) -> AsyncIterator[list[str]]:
    yield prompts


@batched.dynamically(continuous=True, max_joining=4)
def refilled(prompts: list[str]) -> Generator[list[int], batched.Change[str], None]:
    change = yield [len(prompt) for prompt in prompts]
    assert_type(change, batched.Change[str])
    assert_type(change.left, tuple[int, ...])
    assert_type(change.joined, tuple[str, ...])


@batched.aio.dynamically(continuous=True)
async def arefilled(prompts: list[str]) -> AsyncGenerator[list[int], batched.Change[str]]:
    change = yield [len(prompt) for prompt in prompts]
    assert_type(change.joined, tuple[str, ...])


class Generating:
    @batched.dynamically
    def tokens(self, prompts: list[str]) -> Iterator[list[int | batched.Done]]:
        yield [len(prompt) for prompt in prompts]

    @batched.dynamically(timeout_ms=0)
    async def asynchronous(self, prompts: list[str]) -> AsyncIterator[list[bytes]]:
        yield [prompt.encode() for prompt in prompts]


async def streams(model: Generating) -> None:
    assert_type(tokens.stream("a"), Stream[str])
    assert_type(tokens.astream("a"), AsyncStream[str])
    for piece in tokens.stream("a"):
        assert_type(piece, str)
    async for piece in tokens.astream(prompts="a"):
        assert_type(piece, str)
    assert_type(ending.stream("a"), Stream[int])
    assert_type(generator.stream("a"), Stream[str])
    assert_type(asynchronous.astream("a"), AsyncStream[str])
    assert_type(refilled.stream("a"), Stream[int])
    assert_type(refilled("a"), list[int])
    assert_type(await refilled.acall("a"), list[int])
    assert_type(refilled.submit("a"), Future[list[int]])
    assert_type(await arefilled("a"), list[int])
    assert_type(arefilled.astream("a"), AsyncStream[int])
    assert_type(batched.current_batch().left, list[bool])
    refilled.stream(1)  # type: ignore[arg-type]
    assert_type(tokens.options(deadline_ms=5).stream("a"), Stream[str])
    assert_type(tokens.stream("a").close(), None)
    assert_type(await tokens.astream("a").aclose(), None)
    assert_type(model.tokens.stream("a"), Stream[int])
    assert_type(model.asynchronous.astream("a"), AsyncStream[bytes])
    tokens.stream(1)  # type: ignore[arg-type]
    model.tokens.stream(1)  # type: ignore[arg-type]
