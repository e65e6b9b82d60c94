"""What type checkers make of a function over several lists, of which a call has one item each.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

import batched
from batched import Stats
from batched.typing import Answers, AsyncAnswers


@batched.dynamically
def pair(texts: list[str], numbers: list[int]) -> list[float]:
    return [len(text) / number for text, number in zip(texts, numbers, strict=True)]


@batched.dynamically(batch_size=64)
async def pair_coroutine(texts: list[str], numbers: list[int]) -> list[float]:
    return [len(text) / number for text, number in zip(texts, numbers, strict=True)]


class Pairs:
    @batched.dynamically
    def pair(self, texts: list[str], numbers: list[int]) -> list[bytes]:
        return [text.encode() * number for text, number in zip(texts, numbers, strict=True)]

    @batched.dynamically(timeout_ms=0)
    def with_options(self, texts: list[str], numbers: list[int]) -> list[bytes]:
        return [text.encode() * number for text, number in zip(texts, numbers, strict=True)]


async def columns(pairs: Pairs, texts: list[str], numbers: list[int]) -> None:
    assert_type(pair("a", 1), float)
    assert_type(pair(texts, numbers), list[float])
    assert_type(pair("a", numbers=1), float)
    assert_type(pair(texts, numbers=numbers), list[float])
    assert_type(pair(texts="a", numbers=1), float)
    assert_type(await pair.acall("a", 1), float)
    assert_type(await pair.acall(texts, numbers), list[float])
    assert_type(pair.submit("a", 1), Future[float])
    assert_type(pair.submit(texts, numbers), Future[list[float]])
    assert_type(pair.map(texts, numbers), Answers[float])
    assert_type(pair.amap(texts, numbers), AsyncAnswers[float])
    assert_type(pair.map(texts, numbers, with_items=True), Answers[tuple[tuple[str, int], float]])
    assert_type(pair.amap(texts, numbers, with_items=True), AsyncAnswers[tuple[tuple[str, int], float]])
    assert_type(pair.options(deadline_ms=5)("a", 1), float)
    assert_type(pair.stats, Stats)
    assert_type(pair_coroutine("a", 1), float)
    assert_type(pairs.pair("a", 1), bytes)
    assert_type(pairs.pair(texts, numbers), list[bytes])
    assert_type(pairs.with_options.map(texts, numbers), Answers[bytes])
    assert_type(await pairs.with_options.acall("a", 1), bytes)


def wrong_columns(texts: list[str], numbers: list[int]) -> None:
    pair(1, "a")  # type: ignore[call-overload]
    pair(numbers, texts)  # type: ignore[arg-type]
    pair(texts, 1)  # type: ignore[call-overload]
    pair("a", 1, 2)  # type: ignore[call-overload]
    pair.map(numbers, numbers)  # type: ignore[arg-type]
