"""What type checkers make of functions of three columns and more, of optional ones, and of some by name.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import batched
from batched import aio
from batched.typing import Answers, AsyncAnswers


@batched.dynamically
def three(words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@batched.dynamically(batch_size=8)
def four(a: list[str], b: list[int], c: list[bytes], d: list[float]) -> tuple[bool, ...]:
    return tuple(bool(each) for each in a)


@batched.dynamically
def optional(words: list[str], numbers: list[int] | None = None) -> list[float]:
    return [len(word) / 2 for word in words]


@batched.dynamically(timeout_ms=0)
def two_optional(
    words: list[str], numbers: list[int] | None = None, marks: list[bytes] | None = None
) -> list[float]:
    return [len(word) / 2 for word in words]


@batched.dynamically
def by_name(words: list[str], *, numbers: list[int]) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@batched.dynamically
def optional_by_name(words: list[str], *, numbers: list[int] | None = None) -> list[float]:
    return [len(word) / 2 for word in words]


@batched.dynamically
def two_and_by_name(words: list[str], numbers: list[int], *, marks: list[bytes] | None = None) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@aio.dynamically
async def looped_two_and_by_name(words: list[str], numbers: list[int], *, marks: list[bytes]) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@aio.dynamically
async def looped_three(words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@aio.dynamically(batch_size=8)
async def looped_optional(words: list[str], numbers: list[int] | None = None) -> list[float]:
    return [len(word) / 2 for word in words]


@aio.dynamically
def looped_by_name(words: list[str], *, numbers: list[int]) -> list[float]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


class Scorer:
    @batched.dynamically
    def three(self, words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
        return [len(word) / number for word, number in zip(words, numbers, strict=True)]

    @batched.dynamically
    def optional(self, words: list[str], numbers: list[int] | None = None) -> list[float]:
        return [len(word) / 2 for word in words]

    @batched.dynamically
    def by_name(self, words: list[str], *, numbers: list[int]) -> list[float]:
        return [len(word) / number for word, number in zip(words, numbers, strict=True)]

    @batched.dynamically
    @staticmethod
    def static(words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
        return [len(word) / number for word, number in zip(words, numbers, strict=True)]

    @batched.dynamically
    @classmethod
    def of_class(cls, words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
        return [len(word) / number for word, number in zip(words, numbers, strict=True)]

    @aio.dynamically
    async def looped(self, words: list[str], numbers: list[int], marks: list[bytes]) -> list[float]:
        return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@batched.dynamically
def three_to_rows(words: list[str], numbers: list[int], marks: list[bytes]) -> npt.NDArray[np.float32]:
    return np.zeros((len(words), 3), np.float32)


@batched.dynamically(batch_size=8)
def three_with_errors(words: list[str], numbers: list[int], marks: list[bytes]) -> list[float | ValueError]:
    return [len(word) / number for word, number in zip(words, numbers, strict=True)]


@aio.dynamically
async def looped_three_to_rows(a: list[str], b: list[int], c: list[bytes]) -> npt.NDArray[np.float32]:
    return np.zeros((len(a), 3), np.float32)


@aio.dynamically(batch_size=8)
async def looped_three_with_errors(a: list[str], b: list[int], c: list[bytes]) -> list[float | ValueError]:
    return [0.5 for _ in a]


class Rows:
    @batched.dynamically
    def three(self, a: list[str], b: list[int], c: list[bytes]) -> npt.NDArray[np.float32]:
        return np.zeros((len(a), 3), np.float32)

    @batched.dynamically(batch_size=8)
    def with_errors(self, a: list[str], b: list[int], c: list[bytes]) -> list[float | ValueError]:
        return [0.5 for _ in a]

    @aio.dynamically(batch_size=8)
    async def looped(self, a: list[str], b: list[int], c: list[bytes]) -> npt.NDArray[np.float32]:
        return np.zeros((len(a), 3), np.float32)

    @aio.dynamically
    async def looped_with_errors(
        self, a: list[str], b: list[int], c: list[bytes]
    ) -> list[float | ValueError]:
        return [0.5 for _ in a]


async def functions(words: list[str], numbers: list[int], marks: list[bytes]) -> None:
    assert_type(three("a", 1, b""), float)
    assert_type(three(words, numbers, marks), list[float])
    assert_type(three("a", 1, marks=b""), float)
    assert_type(three(words, numbers=numbers, marks=marks), list[float])
    assert_type(three(words="a", numbers=1, marks=b""), float)
    assert_type(three(words=words, numbers=numbers, marks=marks), list[float])
    assert_type(three.submit("a", 1, b""), Future[float])
    assert_type(three.submit(words, numbers, marks), Future[list[float]])
    assert_type(await three.acall("a", 1, b""), float)
    assert_type(await three.acall(words, numbers, marks), list[float])
    assert_type(three.map(words, numbers, marks), Answers[float])
    assert_type(three.amap(words, numbers, marks), AsyncAnswers[float])
    assert_type(three.map(words, numbers, marks, with_items=True), Answers[tuple[tuple[Any, ...], float]])
    assert_type(three.options(deadline_ms=5)("a", 1, b""), float)
    assert_type(three.options(return_exceptions=True)("a", 1, b""), float | Exception)
    assert_type(three.__wrapped__(words, numbers, marks), list[float])
    assert_type(four("a", 1, b"", 1.5), bool)
    assert_type(await looped_three("a", 1, b""), float)
    assert_type(await looped_three(words, numbers, marks), list[float])


async def optional_columns(words: list[str], numbers: list[int], marks: list[bytes]) -> None:
    assert_type(optional("a"), float)
    assert_type(optional("a", 1), float)
    assert_type(optional("a", numbers=1), float)
    assert_type(optional(words), list[float])
    assert_type(optional(words, numbers), list[float])
    assert_type(optional(words, numbers=numbers), list[float])
    assert_type(optional.__wrapped__(words), list[float])
    assert_type(optional.map(words), Answers[float])
    assert_type(optional.map(words, with_items=True), Answers[tuple[str, float]])
    assert_type(two_optional("a"), float)
    assert_type(two_optional("a", 1, b""), float)
    assert_type(two_optional("a", marks=b""), float)
    assert_type(two_optional(words, marks=marks), list[float])
    assert_type(by_name("a", numbers=1), float)
    assert_type(by_name(words, numbers=numbers), list[float])
    assert_type(by_name.submit("a", numbers=1), Future[float])
    assert_type(by_name.__wrapped__(words, numbers=numbers), list[float])
    assert_type(optional_by_name("a", numbers=1), float)
    assert_type(optional_by_name(words), list[float])
    assert_type(two_and_by_name("a", 1, marks=b""), float)
    assert_type(two_and_by_name(words, numbers, marks=marks), list[float])
    assert_type(two_and_by_name("a", numbers=1, marks=b""), float)
    assert_type(two_and_by_name.submit("a", 1, marks=b""), Future[float])
    assert_type(await two_and_by_name.acall(words, numbers), list[float])
    assert_type(await looped_two_and_by_name("a", 1, marks=b""), float)
    assert_type(await looped_optional("a", 1), float)
    assert_type(await looped_by_name(words, numbers=numbers), list[float])


async def methods(model: Scorer, words: list[str], numbers: list[int], marks: list[bytes]) -> None:
    assert_type(model.three("a", 1, b""), float)
    assert_type(model.three(words, numbers, marks), list[float])
    assert_type(model.three.__wrapped__(words, numbers, marks), list[float])
    assert_type(model.optional("a"), float)
    assert_type(model.optional(words, numbers=numbers), list[float])
    assert_type(model.by_name("a", numbers=1), float)
    assert_type(model.static("a", 1, b""), float)
    assert_type(Scorer.static(words, numbers, marks), list[float])
    assert_type(model.of_class("a", 1, b""), float)
    assert_type(Scorer.of_class(words, numbers, marks), list[float])
    assert_type(await model.looped("a", 1, b""), float)


async def rows_and_errors(model: Rows, words: list[str], numbers: list[int], marks: list[bytes]) -> None:
    """A row of an array is an array, and an error in the annotation is raised, so it is no result."""
    assert_type(three_to_rows("a", 1, b""), npt.NDArray[np.float32])
    assert_type(three_to_rows(words, numbers, marks), list[npt.NDArray[np.float32]])
    assert_type(three_with_errors("a", 1, b""), float)
    assert_type(three_with_errors(words, numbers, marks), list[float])
    assert_type(await looped_three_to_rows("a", 1, b""), npt.NDArray[np.float32])
    assert_type(await looped_three_with_errors(words, numbers, marks), list[float])
    assert_type(model.three("a", 1, b""), npt.NDArray[np.float32])
    assert_type(model.with_errors("a", 1, b""), float)
    assert_type(await model.looped("a", 1, b""), npt.NDArray[np.float32])
    assert_type(await model.looped_with_errors(words, numbers, marks), list[float])


def wrong_columns() -> None:
    three(1, 1, b"")  # type: ignore[call-overload]
    optional(1)  # type: ignore[call-overload]
    optional("a", "b")  # type: ignore[call-overload]
    by_name(1, numbers=1)  # type: ignore[call-overload]
