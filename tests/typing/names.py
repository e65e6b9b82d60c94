"""What a user annotates with: each name of `batched.typing`, and those of `batched.aio`.

Never run, but read by both type checkers, as `lists.py` says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Unpack, assert_type

import batched
from batched import AsyncStream, BatchedFunction, Stats, Stream, aio
from batched.inference import BatchedInference
from batched.typing import (
    AsyncAnswers,
    BatchedColumns,
    BatchedMethod,
    Cache,
    CallChanges,
    Changes,
    Distribution,
    Feature,
    Features,
    Learned,
    ManyColumns,
    Method,
    OnFull,
    Padding,
    PaddingSide,
    Priority,
    StreamingFunction,
)
from tests.kit.annotated import annotated


@batched.dynamically
def weighed(words: list[str], weights: list[int]) -> list[float]:
    return [len(word) / weight for word, weight in zip(words, weights, strict=True)]


@batched.dynamically
def letters(words: list[str]) -> Iterator[list[str]]:
    yield words


@aio.dynamically
async def looped_weighed(words: list[str], weights: list[int]) -> list[float]:
    return [len(word) / weight for word, weight in zip(words, weights, strict=True)]


@aio.dynamically
async def looped_letters(words: list[str]) -> AsyncIterator[list[str]]:
    yield words


@aio.dynamically(batch_size=8)
def looped_plain_letters(words: list[str]) -> Iterator[list[str]]:
    yield words


@batched.dynamically
def rated(words: list[str], weights: list[int], marks: list[bytes]) -> list[float]:
    return [len(word) / weight for word, weight in zip(words, weights, strict=True)]


class Model:
    @batched.dynamically
    def embed(self, words: list[str]) -> list[bytes]:
        return [word.encode() for word in words]

    @batched.dynamically
    def weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return [len(word) / weight for word, weight in zip(words, weights, strict=True)]

    @batched.dynamically
    def spell(self, words: list[str]) -> Iterator[list[str]]:
        yield words

    @aio.dynamically
    async def fetch(self, words: list[str]) -> list[bytes]:
        return [word.encode() for word in words]

    @aio.dynamically
    async def looped_weigh(self, words: list[str], weights: list[int]) -> list[float]:
        return [len(word) / weight for word, weight in zip(words, weights, strict=True)]

    @aio.dynamically
    async def looped_spell(self, words: list[str]) -> AsyncIterator[list[str]]:
        yield words


def functions(model: Model) -> None:
    assert_type(annotated(weighed), BatchedColumns[str, int, float])
    assert_type(annotated(model.weigh), BatchedColumns[str, int, float])
    assert_type(annotated(rated), ManyColumns[str, float])
    assert_type(annotated(letters), StreamingFunction[str, str])
    assert_type(annotated(model.spell), StreamingFunction[str, str])
    assert_type(letters.stream("one"), Stream[str])
    embed: BatchedMethod[Model, str, bytes] = Model.embed
    assert_type(annotated(embed.__get__(model)), BatchedFunction[str, bytes])
    weigh: Method[Model, BatchedColumns[str, int, float]] = Model.weigh
    spell: Method[Model, StreamingFunction[str, str]] = Model.spell
    assert_type(annotated(weigh.__get__(model)), BatchedColumns[str, int, float])
    assert_type(annotated(spell.__get__(model)), StreamingFunction[str, str])


async def looped_functions(model: Model, words: list[str], weights: list[int]) -> None:
    assert_type(annotated(looped_weighed), aio.BatchedColumns[str, int, float])
    assert_type(annotated(model.looped_weigh), aio.BatchedColumns[str, int, float])
    assert_type(await looped_weighed("one", 1), float)
    assert_type(await looped_weighed(words, weights=weights), list[float])
    assert_type(await looped_weighed.acall(words, weights), list[float])
    assert_type(looped_weighed.amap(words, weights), AsyncAnswers[float])
    assert_type(annotated(looped_letters), aio.StreamingFunction[str, str])
    assert_type(annotated(looped_plain_letters), aio.StreamingFunction[str, str])
    assert_type(annotated(model.looped_spell), aio.StreamingFunction[str, str])
    assert_type(looped_letters.astream("one"), AsyncStream[str])
    fetch: aio.BatchedMethod[Model, str, bytes] = Model.fetch
    assert_type(annotated(fetch.__get__(model)), aio.BatchedFunction[str, bytes])
    looped_weigh: Method[Model, aio.BatchedColumns[str, int, float]] = Model.looped_weigh
    assert_type(annotated(looped_weigh.__get__(model)), aio.BatchedColumns[str, int, float])


async def wrong_on_loops(words: list[str]) -> None:
    await looped_weighed(1, 1)  # type: ignore[call-overload]
    looped_letters.stream("one")  # type: ignore[attr-defined]
    looped_weighed.submit("one", 1)  # type: ignore[attr-defined]


# -- options, features and figures, as a user passes them on ------------------------------------------------


def decorated(cache: Cache, on_full: OnFull) -> BatchedFunction[str, int]:
    @batched.dynamically(cache=cache, on_full=on_full)
    def lengths(words: list[str]) -> list[int]:
        return [len(word) for word in words]

    return lengths


def padded(side: PaddingSide) -> BatchedInference[Any]:
    return batched.inference.dynamically(lambda features: features["x"], padding_side=side)


def ask(lengths: BatchedFunction[str, int], **options: Unpack[CallChanges]) -> int:
    return lengths.options(**options)("one")


def urgent(lengths: BatchedFunction[str, int], priority: Priority) -> int:
    return lengths.options(priority=priority)("one")


def tune(lengths: BatchedFunction[str, int], **changes: Unpack[Changes]) -> None:
    lengths.configure(**changes)


def infer(model: BatchedInference[Any], feature: Feature) -> None:
    features: Features = {"x": feature}
    as_mapping: Mapping[Any, Any] = features
    model(features)
    model(as_mapping)


def figures(stats: Stats) -> None:
    assert_type(stats.wait, Distribution)
    assert_type(stats.padding, Padding)
    assert_type(stats.learned, Learned | None)


def wrong(lengths: BatchedFunction[str, int]) -> None:
    decorated(cache=3, on_full="raise")  # type: ignore[arg-type]
    decorated(cache={}, on_full="drop")  # type: ignore[arg-type]
    padded("top")  # type: ignore[arg-type]
    urgent(lengths, "at once")  # type: ignore[arg-type]
    ask(lengths, batch_size=3)  # type: ignore[call-arg]
    tune(lengths, name="other")  # type: ignore[call-arg]
