"""What type checkers make of `batched.dynamically`: around which functions over lists, and called how.

Never run, as its neighbours: the session `types` of noxfile.py has both checkers read them.

A line that must be an error says `type: ignore`, and both checkers complain of every such comment that they
do not need. The code in its brackets is mypy's; to pyright it means any error.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from functools import partial
from typing import Any, TypeVar, assert_type

import numpy as np
import numpy.typing as npt

import batched
from batched import BatchedFunction, Stats
from batched.typing import Answers, AsyncAnswers
from tests.kit.annotated import annotated

V = TypeVar("V")


def plain(sentences: list[str]) -> list[int]:
    return [len(sentence) for sentence in sentences]


@batched.dynamically
def bare(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically()
def empty_parentheses(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically(batch_size=64, timeout_ms=1, small_batch_threshold=4, name="lengths")
def with_options(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically(64)
def positional(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically
async def coroutine(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically(timeout_ms=2.5)
async def coroutine_with_options(sentences: list[str]) -> list[int]:
    return plain(sentences)


def forms() -> None:
    assert_type(annotated(bare), BatchedFunction[str, int])
    assert_type(annotated(empty_parentheses), BatchedFunction[str, int])
    assert_type(annotated(with_options), BatchedFunction[str, int])
    assert_type(annotated(positional), BatchedFunction[str, int])
    assert_type(annotated(coroutine), BatchedFunction[str, int])
    assert_type(annotated(coroutine_with_options), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(plain)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(plain, batch_size=64)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(plain, 64, 5.0, 8)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(plain, 64, 5.0, 8, name=None)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(64, 5.0, 8)(plain)), BatchedFunction[str, int])


def calls(items: list[str], anything: Any) -> None:
    assert_type(bare("one"), int)
    assert_type(bare(["one", "two"]), list[int])
    assert_type(bare(items), list[int])
    assert_type(bare([]), list[int])
    assert_type(bare(sentences="one"), int)
    assert_type(bare(sentences=["one"]), list[int])
    assert_type(bare(anything), Any)

    assert_type(bare.submit("one"), Future[int])
    assert_type(bare.submit(items), Future[list[int]])
    assert_type(bare.submit(sentences="one"), Future[int])
    assert_type(bare.submit(sentences=items), Future[list[int]])

    assert_type(bare.map(items), Answers[int])
    assert_type(bare.map(sentence for sentence in items), Answers[int])
    assert_type(bare.map(items, with_items=False), Answers[int])
    assert_type(bare.map(items, with_items=True), Answers[tuple[str, int]])
    assert_type(bare.map(items, with_items=bool(items)), Answers[Any])
    errors = bare.options(return_exceptions=True).map(items, with_items=True)
    assert_type(errors, Answers[tuple[str, int | Exception]])


async def closed_maps(items: list[str], source: AsyncIterator[str]) -> None:
    with closing(bare.map(items)) as lengths:
        assert_type(lengths, Answers[int])
        assert_type(next(lengths), int)
    pairs = bare.map(items, with_items=True)
    assert_type([*pairs], list[tuple[str, int]])
    pairs.close()
    async with aclosing(bare.amap(source)) as answers:
        assert_type(answers, AsyncAnswers[int])
        assert_type(await anext(answers), int)
    iterators: list[Iterator[int]] = [bare.map(items)]
    asynchronous: list[AsyncIterator[int]] = [bare.amap(items)]
    assert iterators
    assert asynchronous


async def async_calls(items: list[str], source: AsyncIterator[str]) -> None:
    assert_type(await bare.acall("one"), int)
    assert_type(await bare.acall(items), list[int])
    assert_type(await bare.acall(sentences="one"), int)
    assert_type(await bare.acall(sentences=items), list[int])

    assert_type(bare.amap(items), AsyncAnswers[int])
    assert_type(bare.amap(source), AsyncAnswers[int])
    assert_type(bare.amap(source, with_items=True), AsyncAnswers[tuple[str, int]])
    assert_type(bare.amap(items, with_items=True), AsyncAnswers[tuple[str, int]])
    async for length in bare.amap(source):
        assert_type(length, int)

    assert_type(coroutine("one"), int)
    assert_type(await coroutine.acall(items), list[int])
    assert_type(await bare.aclose(), None)


def views_and_life() -> None:
    hurried = bare.options(deadline_ms=200, priority="interactive", return_exceptions=True)
    assert_type(annotated(hurried), BatchedFunction[str, int | Exception])
    assert_type(hurried("one"), int | Exception)
    assert_type(annotated(bare.options(deadline_ms=None, priority=None)), BatchedFunction[str, int])
    assert_type(bare.options(priority="bulk").submit(["one"]), Future[list[int]])
    with bare as entered:
        assert_type(annotated(entered), BatchedFunction[str, int])
    assert_type(bare.shutdown(wait=False, cancel_futures=True), None)


def stats() -> None:
    assert_type(bare.stats, Stats)
    assert_type(bare.stats.queue_size, int)
    assert_type(bare.stats.running_items, int)
    assert_type(bare.stats.total_accepted, int)
    assert_type(bare.stats.total_processed, int)
    assert_type(bare.stats.total_failed, int)
    assert_type(bare.stats.total_cancelled, int)
    assert_type(bare.stats.total_expired, int)
    assert_type(bare.stats.total_batches, int)
    assert_type(bare.stats.avg_batch_size, float)
    assert_type(bare.stats.avg_processing_time, float)
    bare.stats.total_batches = 0  # type: ignore[misc]


@batched.dynamically
def to_array(sentences: list[str]) -> np.ndarray:
    return np.zeros(len(sentences))


@batched.dynamically
def to_typed_array(sentences: list[str]) -> npt.NDArray[np.float32]:
    return np.zeros(len(sentences), np.float32)


@batched.dynamically
def to_list_of_arrays(sentences: list[str]) -> list[np.ndarray]:
    return [np.zeros(3) for _ in sentences]


@batched.dynamically
def to_tuple(sentences: list[str]) -> tuple[int, ...]:
    return tuple(plain(sentences))


@batched.dynamically
def sequence_to_sequence(sentences: Sequence[str]) -> Sequence[int]:
    return [len(sentence) for sentence in sentences]


@batched.dynamically
def of_tuples(pairs: list[tuple[str, int]]) -> list[str]:
    return [text * times for text, times in pairs]


@batched.dynamically
def of_optional(items: list[str | None]) -> list[str | None]:
    return items


@batched.dynamically
def of_lists(rows: list[list[int]]) -> list[int]:
    return [sum(row) for row in rows]


@batched.dynamically
def with_defaults(sentences: list[str], normalize: bool = True, *, scale: float = 1.0) -> list[float]:
    return [scale for _ in sentences]


def shapes(pairs: list[tuple[str, int]]) -> None:
    assert_type(annotated(to_typed_array), BatchedFunction[str, npt.NDArray[np.float32]])
    assert_type(to_list_of_arrays("one"), np.ndarray)
    assert_type(to_tuple("one"), int)
    assert_type(to_tuple(["one"]), list[int])
    assert_type(annotated(sequence_to_sequence), BatchedFunction[str, int])
    assert_type(of_tuples(("one", 1)), str)
    assert_type(of_tuples(pairs), list[str])
    assert_type(of_optional(None), str | None)
    assert_type(of_optional([None, "one"]), list[str | None])
    assert_type(of_lists([[1, 2], [3]]), list[int])
    assert_type(of_lists.map([[1, 2], [3]]), Answers[int])
    assert_type(annotated(with_defaults), BatchedFunction[str, float])


@batched.dynamically
def of_any_type(items: list[V]) -> list[tuple[V, int]]:
    return [(item, 1) for item in items]


def generic() -> None:
    of_any_type("one")
    of_any_type(["one"])


def partials(scaled: Callable[[float, list[str]], list[float]]) -> None:
    assert_type(batched.dynamically(partial(scaled, 2.0))(["one"]), list[float])


def wrong_items(numbers: list[int], source: AsyncIterator[int]) -> None:
    bare(3)  # type: ignore[call-overload]
    bare([3])  # type: ignore[list-item]
    bare(numbers)  # type: ignore[arg-type]
    bare(("one", "two"))  # type: ignore[call-overload]
    bare("one", "two")  # type: ignore[call-overload]
    bare.submit(3)  # type: ignore[call-overload]
    bare.map(numbers)  # type: ignore[arg-type]
    bare.map([["one"]])  # type: ignore[list-item]
    bare.map(numbers, with_items=True)  # type: ignore[arg-type]
    bare.map(["one"], with_items="yes")  # type: ignore[call-overload]
    bare.amap(source)  # type: ignore[arg-type]


async def wrong_items_async() -> None:
    await bare.acall(3)  # type: ignore[call-overload]
    await bare("one")  # type: ignore[misc]


def wrong_functions() -> None:
    batched.dynamically(len)  # type: ignore[arg-type]
    batched.dynamically(str.upper)  # type: ignore[arg-type]
    batched.dynamically(64)(len)  # type: ignore[arg-type]

    @batched.dynamically  # type: ignore[arg-type]
    def of_tuple(sentences: tuple[str, ...]) -> list[int]:
        return [len(sentence) for sentence in sentences]

    @batched.dynamically  # type: ignore[arg-type]
    def to_none(sentences: list[str]) -> None:
        sentences.clear()

    @batched.dynamically  # type: ignore[arg-type]
    def to_number(sentences: list[str]) -> int:
        return len(sentences)

    @batched.dynamically  # type: ignore[arg-type]
    def to_iterator(sentences: list[str]) -> Iterator[int]:
        return map(len, sentences)
