"""What type checkers make of a decorated function that other code calls: executors, `map`, event loops.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Protocol, assert_type

import batched
from batched import aio


@batched.dynamically
def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@batched.dynamically
def weigh(words: list[str], weights: list[int]) -> list[float]:
    return [len(word) / weight for word, weight in zip(words, weights, strict=True)]


@aio.dynamically
async def fetch(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Embedder(Protocol):
    def __call__(self, text: str, /) -> int: ...


class Embedding(Protocol):
    def embed(self, text: str, /) -> int: ...


class Model:
    @batched.dynamically
    def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


class Made:
    def __init__(self) -> None:
        self.embed = batched.dynamically(self._embed)

    def _embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


def of_model(model: Embedding) -> None: ...
def of_one(function: Callable[[str], int], embedder: Embedder) -> None: ...
def of_many(function: Callable[[list[str]], list[int]]) -> None: ...
def of_two(function: Callable[[str, int], float]) -> None: ...
def of_tasks(
    function: Callable[[str], Awaitable[int]], one: Callable[[str], Coroutine[Any, Any, int]]
) -> None: ...


def parameters() -> None:
    of_one(embed, embed)
    of_many(embed)
    of_two(weigh)
    of_tasks(fetch, embed.acall)
    of_one(embed.options(deadline_ms=5), embed)
    of_two(embed)  # type: ignore[arg-type]
    of_one(weigh, fetch)  # type: ignore[arg-type]


def protocols() -> None:
    of_one(Model().embed, Model().embed)
    of_model(Made())
    of_model(Model())  # pyright: ignore[reportArgumentType]  it does not bind with `__get__`, as `docs/faq.md` says


def threads(executor: Executor, texts: list[str]) -> None:
    assert_type(executor.submit(embed, "one"), Future[int])
    assert_type(executor.submit(embed, texts), Future[list[int]])
    assert_type(executor.submit(weigh, "one", 1), Future[float])
    assert_type(list(map(embed, texts)), list[int])
    assert_type(list(map(embed, [texts])), list[list[int]])
    assert_type(list(map(weigh, texts, [1])), list[float])
    assert_type([future.result() for future in map(embed.submit, texts)], list[int])
    assert_type(max(texts, key=embed), str)
    # It takes any function, of which type checkers take the first signature: so `docs/faq.md` has `submit`.
    assert_type(executor.map(embed, texts), Iterator[list[int]])


async def tasks(texts: list[str]) -> None:
    loop = asyncio.get_running_loop()
    assert_type(await asyncio.to_thread(embed, "one"), int)
    assert_type(await asyncio.to_thread(embed, texts), list[int])
    assert_type(await asyncio.to_thread(weigh, "one", 1), float)
    assert_type(await loop.run_in_executor(None, embed, "one"), int)
    assert_type(await asyncio.gather(*map(embed.acall, texts)), list[int])
    assert_type(await asyncio.gather(*map(fetch, texts)), list[int])
    assert_type(await asyncio.gather(fetch("one"), embed.acall(texts)), tuple[int, list[int]])
    assert_type(await asyncio.create_task(fetch("one")), int)
    assert_type(await asyncio.wait_for(fetch(texts), 1), list[int])
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(embed.acall("one")), asyncio.Task[int])
