"""What type checkers make of methods of each kind, and of objects, that are decorated.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, assert_type

import numpy as np
import numpy.typing as npt

import batched
from batched import AsyncStream, BatchedFunction, Stats, aio
from batched.typing import Answers, AsyncAnswers
from tests.kit.annotated import annotated

V = TypeVar("V")


def plain(sentences: list[str]) -> list[int]:
    return [len(sentence) for sentence in sentences]


class Model:
    @batched.dynamically
    def embed(self, sentences: list[str]) -> list[bytes]:
        return [sentence.encode() for sentence in sentences]

    @batched.dynamically(batch_size=64, name="embed")
    def with_options(self, sentences: list[str]) -> list[bytes]:
        return [sentence.encode() for sentence in sentences]

    @batched.dynamically
    async def coroutine(self, sentences: list[str]) -> list[bytes]:
        return [sentence.encode() for sentence in sentences]

    @batched.dynamically(64)
    async def coroutine_with_options(self, sentences: list[str]) -> list[bytes]:
        return [sentence.encode() for sentence in sentences]

    @batched.dynamically
    @staticmethod
    def static(sentences: list[str]) -> list[int]:
        return plain(sentences)

    @staticmethod
    @batched.dynamically
    def static_outside(sentences: list[str]) -> list[int]:
        return plain(sentences)

    @batched.dynamically(batch_size=64)
    @classmethod
    def of_class(cls, sentences: list[str]) -> list[int]:
        return plain(sentences)

    def encode(self, sentences: Sequence[str], normalize: bool = True) -> npt.NDArray[np.float32]:
        return np.zeros(len(sentences), np.float32)

    def __call__(self, sentences: list[str]) -> list[int]:
        return plain(sentences)


class Submodel(Model):
    pass


def methods(model: Model) -> None:
    assert_type(annotated(model.embed), BatchedFunction[str, bytes])
    assert_type(annotated(model.with_options), BatchedFunction[str, bytes])
    assert_type(annotated(model.coroutine), BatchedFunction[str, bytes])
    assert_type(annotated(model.coroutine_with_options), BatchedFunction[str, bytes])
    assert_type(annotated(Submodel().embed), BatchedFunction[str, bytes])

    assert_type(model.embed("one"), bytes)
    assert_type(model.embed(["one"]), list[bytes])
    assert_type(model.embed(sentences="one"), bytes)
    assert_type(model.embed(sentences=["one"]), list[bytes])
    assert_type(model.embed.submit("one"), Future[bytes])
    assert_type(model.embed.submit(["one"]), Future[list[bytes]])
    assert_type(model.embed.map(["one"]), Answers[bytes])
    assert_type(model.embed.map(["one"], with_items=True), Answers[tuple[str, bytes]])
    assert_type(annotated(model.embed.options(priority="bulk")), BatchedFunction[str, bytes])
    assert_type(model.embed.options(deadline_ms=5)(["one"]), list[bytes])


async def async_methods(model: Model, source: AsyncIterator[str]) -> None:
    assert_type(await model.embed.acall("one"), bytes)
    assert_type(await model.embed.acall(["one"]), list[bytes])
    assert_type(model.embed.amap(source), AsyncAnswers[bytes])
    assert_type(await model.coroutine.acall("one"), bytes)


async def through_the_class(model: Model, source: AsyncIterator[str]) -> None:
    assert_type(Model.embed(model, "one"), bytes)
    assert_type(Model.embed(model, ["one"]), list[bytes])
    assert_type(Model.embed(model, sentences="one"), bytes)
    assert_type(Model.embed(model, sentences=["one"]), list[bytes])
    assert_type(Model.with_options(Submodel(), "one"), bytes)
    assert_type(await Model.embed.acall(model, "one"), bytes)
    assert_type(await Model.embed.acall(model, ["one"]), list[bytes])
    assert_type(await Model.coroutine.acall(model, sentences=["one"]), list[bytes])
    assert_type(Model.embed.submit(model, "one"), Future[bytes])
    assert_type(Model.embed.submit(model, ["one"]), Future[list[bytes]])
    assert_type(Model.embed.map(model, ["one"]), Answers[bytes])
    assert_type(Model.embed.map(model, ["one"], with_items=True), Answers[tuple[str, bytes]])
    assert_type(Model.embed.amap(model, ["one"]), AsyncAnswers[bytes])
    assert_type(Model.embed.amap(model, source), AsyncAnswers[bytes])


class Everything:
    @batched.dynamically
    def weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return [len(word) / weight for word, weight in zip(words, weights, strict=True)]

    @batched.dynamically(batch_size=8)
    def three(self, words: list[str], weights: list[int], marks: list[bytes]) -> list[float]:
        return [len(word) / weight for word, weight in zip(words, weights, strict=True)]

    @batched.dynamically
    def letters(self, words: list[str]) -> Iterator[list[str]]:
        yield words

    @batched.dynamically
    def embed(self, words: list[str]) -> list[int]:
        return plain(words)

    @aio.dynamically
    async def looped(self, words: list[str]) -> list[int]:
        return plain(words)

    @aio.dynamically
    async def looped_weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return [len(word) / weight for word, weight in zip(words, weights, strict=True)]


class OtherEverything(Everything):
    """Each method is in place of one of the base class, as plain methods may be."""

    @batched.dynamically
    def weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return super().weigh.__wrapped__(words, weights)

    @batched.dynamically
    def three(self, words: list[str], weights: list[int], marks: list[bytes]) -> list[float]:
        return super().three.__wrapped__(words, weights, marks)

    @batched.dynamically
    def letters(self, words: list[str]) -> Iterator[list[str]]:
        yield [word.upper() for word in words]

    @batched.dynamically(batch_size=8)
    def embed(self, words: list[str]) -> list[int]:
        return super().embed.__wrapped__(words)

    @aio.dynamically(batch_size=8)
    async def looped(self, words: list[str]) -> list[int]:
        return await super().looped.__wrapped__(words)

    @aio.dynamically
    async def looped_weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return await super().looped_weigh.__wrapped__(words, weights)


async def of_any_columns_through_the_class(model: Everything) -> None:
    """Their first argument is checked, and no more."""
    assert_type(Everything.weigh(model, "one", 1), Any)
    assert_type(Everything.three(model, ["one"], [1], marks=[b""]), Any)
    assert_type(Everything.letters(OtherEverything(), "one"), Any)
    assert_type(await Everything.weigh.acall(model, "one", 1), Any)
    assert_type(await Everything.looped_weigh(model, "one", 1), Any)
    assert_type(OtherEverything().embed("one"), int)
    assert_type(await OtherEverything().looped_weigh("one", 1), float)


def names(model: Everything) -> None:
    assert_type(model.embed.__name__, str)
    assert_type(model.weigh.__qualname__, str)
    assert_type(Everything.embed.__name__, str)
    assert_type(Everything.weigh.__qualname__, str)
    assert_type(model.looped.__name__, str)


def static_and_class_methods(model: Model) -> None:
    assert_type(annotated(model.static), BatchedFunction[str, int])
    assert_type(annotated(Model.static), BatchedFunction[str, int])
    assert_type(annotated(model.static_outside), BatchedFunction[str, int])
    assert_type(annotated(Model.static_outside), BatchedFunction[str, int])
    assert_type(annotated(model.of_class), BatchedFunction[str, int])
    assert_type(annotated(Model.of_class), BatchedFunction[str, int])
    assert_type(annotated(Submodel.of_class), BatchedFunction[str, int])
    assert_type(Model.of_class(["one"]), list[int])


def bound_and_callable(model: Model) -> None:
    assert_type(batched.dynamically(model.encode, batch_size=64)("one"), npt.NDArray[np.float32])
    assert_type(annotated(batched.dynamically(model)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(model, 64)), BatchedFunction[str, int])


class Holder:
    """Its attributes are decorated functions. No annotation says so."""

    def __init__(self, model: Model) -> None:
        self.encode = batched.dynamically(model.encode, batch_size=64)
        self.counts = batched.dynamically(timeout_ms=0)(self.count)
        self.looped = aio.dynamically(self.count)
        self.stream = batched.dynamically(self.pieces)
        self.looped_stream = aio.dynamically(batch_size=8)(self.pieces)

    def count(self, sentences: list[str]) -> list[int]:
        return plain(sentences)

    def pieces(self, sentences: list[str]) -> Iterator[list[bytes]]:
        yield [sentence.encode() for sentence in sentences]


async def attributes(holder: Holder) -> None:
    assert_type(holder.encode("one"), npt.NDArray[np.float32])
    assert_type(holder.counts("one"), int)
    assert_type(await holder.looped(["one"]), list[int])
    assert_type(holder.stream("one"), list[bytes])
    assert_type(holder.looped_stream.astream("one"), AsyncStream[bytes])
    once_more = batched.dynamically(plain)
    once_more = batched.dynamically(plain, batch_size=8)
    assert_type(once_more("one"), int)


class Echo(Generic[V]):
    @batched.dynamically
    def twice(self, items: list[V]) -> list[tuple[V, V]]:
        return [(item, item) for item in items]


def generic(echo: Echo[int], words: Echo[str]) -> None:
    assert_type(annotated(echo.twice), BatchedFunction[int, tuple[int, int]])
    assert_type(echo.twice(1), tuple[int, int])
    assert_type(words.twice(["one"]), list[tuple[str, str]])


def stats() -> None:
    assert_type(Model().embed.stats, Stats)


def wrong_items(model: Model) -> None:
    model.embed(3)  # type: ignore[call-overload]
    Model.embed("one")  # type: ignore[call-overload]
    Model.embed(model, 3)  # type: ignore[call-overload]
    Model.embed.submit(model, 3)  # type: ignore[call-overload]
    Everything.weigh("one", 1)  # type: ignore[arg-type]
    OtherEverything.weigh(Everything(), "one", 1)  # type: ignore[arg-type]
    OtherEverything.embed(Everything(), "one")  # type: ignore[call-overload]


async def wrong_items_async(model: Model) -> None:
    await Model.embed.acall(model, 3)  # type: ignore[call-overload]


def wrong_places() -> None:
    repr(Model.embed.stats)  # type: ignore[attr-defined]
    Model.embed.options(priority="bulk")  # type: ignore[attr-defined]
    Model.embed.shutdown()  # type: ignore[attr-defined]
