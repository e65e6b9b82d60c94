"""What type checkers make of `batched.dynamically`, and of its like for arrays.

Never run: the session `types` of noxfile.py has both checkers read it.

A line that must be an error says `type: ignore`, and both checkers complain of every such comment that they
do not need. The code in its brackets is mypy's; to pyright it means any error.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, assert_type

import numpy as np
import numpy.typing as npt
from torch import Tensor

import batched
from batched import AsyncStream, BatchedFunction, Stats, Stream, aio, inference
from batched.aio import inference as aio_inference
from batched.inference import BatchedInference

V = TypeVar("V")


def plain(sentences: list[str]) -> list[int]:
    return [len(sentence) for sentence in sentences]


# -- the decorator's forms: bare, with options, around a function, `async def` ----------------------------


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
    assert_type(bare, BatchedFunction[str, int])
    assert_type(empty_parentheses, BatchedFunction[str, int])
    assert_type(with_options, BatchedFunction[str, int])
    assert_type(positional, BatchedFunction[str, int])
    assert_type(coroutine, BatchedFunction[str, int])
    assert_type(coroutine_with_options, BatchedFunction[str, int])
    assert_type(batched.dynamically(plain), BatchedFunction[str, int])
    assert_type(batched.dynamically(plain, batch_size=64), BatchedFunction[str, int])
    assert_type(batched.dynamically(plain, 64, 5.0, 8), BatchedFunction[str, int])
    assert_type(batched.dynamically(plain, 64, 5.0, 8, name=None), BatchedFunction[str, int])
    assert_type(batched.dynamically(64, 5.0, 8)(plain), BatchedFunction[str, int])


# -- the ways to call -------------------------------------------------------------------------------------


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

    assert_type(bare.map(items), Iterator[int])
    assert_type(bare.map(sentence for sentence in items), Iterator[int])


async def async_calls(items: list[str], source: AsyncIterator[str]) -> None:
    assert_type(await bare.acall("one"), int)
    assert_type(await bare.acall(items), list[int])
    assert_type(await bare.acall(sentences="one"), int)
    assert_type(await bare.acall(sentences=items), list[int])

    assert_type(bare.amap(items), AsyncIterator[int])
    assert_type(bare.amap(source), AsyncIterator[int])
    async for length in bare.amap(source):
        assert_type(length, int)

    assert_type(coroutine("one"), int)
    assert_type(await coroutine.acall(items), list[int])
    assert_type(await bare.aclose(), None)


def views_and_life() -> None:
    hurried = bare.options(deadline_ms=200, priority="interactive", return_exceptions=True)
    assert_type(hurried, BatchedFunction[str, int])
    assert_type(hurried("one"), int)
    assert_type(bare.options(deadline_ms=None, priority=None), BatchedFunction[str, int])
    assert_type(bare.options(priority="bulk").submit(["one"]), Future[list[int]])
    with bare as entered:
        assert_type(entered, BatchedFunction[str, int])
    assert_type(bare.shutdown(wait=False, cancel_futures=True), None)


def stats() -> None:
    assert_type(bare.stats, Stats)
    assert_type(Model().embed.stats, Stats)
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


# -- methods ----------------------------------------------------------------------------------------------


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
    assert_type(model.embed, BatchedFunction[str, bytes])
    assert_type(model.with_options, BatchedFunction[str, bytes])
    assert_type(model.coroutine, BatchedFunction[str, bytes])
    assert_type(model.coroutine_with_options, BatchedFunction[str, bytes])
    assert_type(Submodel().embed, BatchedFunction[str, bytes])

    assert_type(model.embed("one"), bytes)
    assert_type(model.embed(["one"]), list[bytes])
    assert_type(model.embed(sentences="one"), bytes)
    assert_type(model.embed(sentences=["one"]), list[bytes])
    assert_type(model.embed.submit("one"), Future[bytes])
    assert_type(model.embed.submit(["one"]), Future[list[bytes]])
    assert_type(model.embed.map(["one"]), Iterator[bytes])
    assert_type(model.embed.options(priority="bulk"), BatchedFunction[str, bytes])
    assert_type(model.embed.options(deadline_ms=5)(["one"]), list[bytes])


async def async_methods(model: Model, source: AsyncIterator[str]) -> None:
    assert_type(await model.embed.acall("one"), bytes)
    assert_type(await model.embed.acall(["one"]), list[bytes])
    assert_type(model.embed.amap(source), AsyncIterator[bytes])
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
    assert_type(Model.embed.map(model, ["one"]), Iterator[bytes])
    assert_type(Model.embed.amap(model, ["one"]), AsyncIterator[bytes])
    assert_type(Model.embed.amap(model, source), AsyncIterator[bytes])


def static_and_class_methods(model: Model) -> None:
    assert_type(model.static, BatchedFunction[str, int])
    assert_type(Model.static, BatchedFunction[str, int])
    assert_type(model.static_outside, BatchedFunction[str, int])
    assert_type(Model.static_outside, BatchedFunction[str, int])
    assert_type(model.of_class, BatchedFunction[str, int])
    assert_type(Model.of_class, BatchedFunction[str, int])
    assert_type(Submodel.of_class, BatchedFunction[str, int])
    assert_type(Model.of_class(["one"]), list[int])


def bound_and_callable(model: Model) -> None:
    assert_type(batched.dynamically(model.encode, batch_size=64), BatchedFunction[str, Any])
    assert_type(batched.dynamically(model), BatchedFunction[str, int])
    assert_type(batched.dynamically(model, 64), BatchedFunction[str, int])


class Echo(Generic[V]):
    @batched.dynamically
    def twice(self, items: list[V]) -> list[tuple[V, V]]:
        return [(item, item) for item in items]


def generic(echo: Echo[int], words: Echo[str]) -> None:
    assert_type(echo.twice, BatchedFunction[int, tuple[int, int]])
    assert_type(echo.twice(1), tuple[int, int])
    assert_type(words.twice(["one"]), list[tuple[str, str]])


# -- what batch functions take and return -----------------------------------------------------------------


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
    assert_type(to_array, BatchedFunction[str, Any])  # an array's rows are Any to numpy itself
    assert_type(to_typed_array, BatchedFunction[str, Any])
    assert_type(to_list_of_arrays("one"), np.ndarray)
    assert_type(to_tuple("one"), int)
    assert_type(to_tuple(["one"]), list[int])
    assert_type(sequence_to_sequence, BatchedFunction[str, int])
    assert_type(of_tuples(("one", 1)), str)
    assert_type(of_tuples(pairs), list[str])
    assert_type(of_optional(None), str | None)
    assert_type(of_optional([None, "one"]), list[str | None])
    assert_type(of_lists([[1, 2], [3]]), list[int])
    assert_type(of_lists.map([[1, 2], [3]]), Iterator[int])
    assert_type(with_defaults, BatchedFunction[str, float])


def partials(scaled: Callable[[float, list[str]], list[float]]) -> None:
    assert_type(batched.dynamically(partial(scaled, 2.0))(["one"]), list[float])


# -- arrays -----------------------------------------------------------------------------------------------


Floats: TypeAlias = npt.NDArray[np.float32]


@inference.dynamically
def infer(features: dict[str, Floats]) -> Floats:
    return features["x"]


@inference.dynamically(
    64,
    5.0,
    name="infer",
    pad_token={"x": 0},
    padding_side="left",
    pad_to_multiple_of=8,
    unpad_outputs={"logits": "x"},
)
def infer_with_options(features: dict[str, Floats]) -> dict[str, Floats]:
    return features


@inference.dynamically(spread_kwargs=True, pad_tokens=-1, unpad_outputs=True)
def infer_spread(x: Floats, mask: Floats) -> tuple[Floats, Floats]:
    return x, mask


@inference.dynamically
async def infer_later(features: dict[str, Floats]) -> Floats:
    return features["x"]


@inference.dynamically(batch_size=64)
async def infer_later_with_options(features: dict[str, Floats]) -> list[Floats]:
    return [features["x"]]


class Encoder:
    @inference.dynamically
    def encode(self, features: dict[str, Floats]) -> Floats:
        return features["x"]

    @inference.dynamically(batch_size=64, spread_kwargs=True)
    def encode_spread(self, x: Floats, mask: Floats) -> dict[str, Floats]:
        return {"x": x, "mask": mask}

    @inference.dynamically(timeout_ms=0)
    async def encode_later(self, features: dict[str, Floats]) -> Floats:
        return features["x"]


def arrays(x: Floats, features: dict[str, Floats], mapping: Mapping[str, Floats], encoder: Encoder) -> None:
    assert_type(infer, BatchedInference[Floats])
    assert_type(infer(features), Floats)
    assert_type(infer(mapping), Floats)
    assert_type(infer({"x": [x, x]}), Floats)
    assert_type(infer(x=x, mask=x), Floats)
    assert_type(infer.submit(features), Future[Floats])
    assert_type(infer.submit(x=x), Future[Floats])
    assert_type(infer.map([features]), Iterator[Floats])
    assert_type(infer.options(deadline_ms=200, priority="bulk"), BatchedInference[Floats])
    assert_type(infer.options(return_exceptions=True)(features), Floats)
    assert_type(infer.stats, Stats)
    assert_type(infer.stats.padding.real, int)
    assert_type(infer.stats.padding.waste_percent, float)
    with infer as entered:
        assert_type(entered, BatchedInference[Floats])

    assert_type(infer_with_options(features), dict[str, Floats])
    assert_type(infer_spread(x=x, mask=x), tuple[Floats, Floats])
    assert_type(infer_spread(features), tuple[Floats, Floats])
    assert_type(infer_later, BatchedInference[Floats])
    assert_type(infer_later(features), Floats)
    assert_type(infer_later_with_options(x=x), list[Floats])
    assert_type(inference.dynamically(batch_size=2)(encoder.encode), BatchedInference[Floats])

    assert_type(encoder.encode, BatchedInference[Floats])
    assert_type(encoder.encode(features), Floats)
    assert_type(encoder.encode(x=x), Floats)
    assert_type(encoder.encode.submit(x=x), Future[Floats])
    assert_type(encoder.encode_spread(x=x, mask=x), dict[str, Floats])
    assert_type(encoder.encode_later(features), Floats)
    assert_type(encoder.encode.options(priority="bulk")(features), Floats)


async def async_arrays(features: dict[str, Floats], source: AsyncIterator[dict[str, Floats]]) -> None:
    assert_type(await infer.acall(features), Floats)
    assert_type(await infer.acall(**features), Floats)
    assert_type(await infer_later.acall(features), Floats)
    assert_type(await Encoder().encode_later.acall(features), Floats)
    assert_type(infer.amap(source), AsyncIterator[Floats])
    assert_type(infer.amap([features]), AsyncIterator[Floats])


def wrong_arrays(x: Floats) -> None:
    infer(x)  # type: ignore[arg-type]
    infer({"x": x}, {"x": x})  # type: ignore[call-arg]
    infer.map([x])  # type: ignore[list-item]
    inference.dynamically(padding_side="middle")  # type: ignore[call-overload]
    inference.dynamically(pad_to_multiple_of="8")  # type: ignore[call-overload]
    inference.dynamically(spread_kwargs=None)  # type: ignore[call-overload]
    inference.dynamically(padding=0)  # type: ignore[call-overload]


# -- on event loops -------------------------------------------------------------------------------------


@aio.dynamically
async def looped(sentences: list[str]) -> list[int]:
    return plain(sentences)


@aio.dynamically(batch_size=64, timeout_ms=1, small_batch_threshold=4, name="lengths")
def looped_plain(sentences: list[str]) -> list[int]:
    return plain(sentences)


@aio.dynamically(64)
async def looped_positional(sentences: list[str]) -> list[int]:
    return plain(sentences)


class Store:
    @aio.dynamically
    async def fetch(self, keys: list[str]) -> list[bytes]:
        return [key.encode() for key in keys]

    @aio.dynamically(batch_size=64)
    @classmethod
    async def of_class(cls, keys: list[str]) -> list[int]:
        return plain(keys)

    @aio.dynamically
    @staticmethod
    async def static(keys: list[str]) -> list[int]:
        return plain(keys)

    async def encode(self, keys: Sequence[str]) -> list[int]:
        return plain(list(keys))


async def looped_calls(store: Store, items: list[str], source: AsyncIterator[str]) -> None:
    assert_type(looped, aio.BatchedFunction[str, int])
    assert_type(looped_plain, aio.BatchedFunction[str, int])
    assert_type(looped_positional, aio.BatchedFunction[str, int])
    assert_type(aio.dynamically(plain, batch_size=64), aio.BatchedFunction[str, int])
    assert_type(aio.dynamically(store.encode), aio.BatchedFunction[str, int])
    assert_type(await looped("one"), int)
    assert_type(await looped(items), list[int])
    assert_type(await looped(sentences="one"), int)
    assert_type(await looped.acall("one"), int)
    assert_type(await looped_plain.acall(items), list[int])
    assert_type(looped.amap(source), AsyncIterator[int])
    assert_type(looped.options(deadline_ms=200), aio.BatchedFunction[str, int])
    assert_type(await looped.options(deadline_ms=200)(items), list[int])
    assert_type(looped.stats, Stats)
    async with looped as entered:
        assert_type(entered, aio.BatchedFunction[str, int])
    assert_type(await looped.aclose(), None)

    assert_type(store.fetch, aio.BatchedFunction[str, bytes])
    assert_type(await store.fetch("one"), bytes)
    assert_type(await store.fetch(["one"]), list[bytes])
    assert_type(await Store.fetch(store, "one"), bytes)
    assert_type(await Store.fetch.acall(store, ["one"]), list[bytes])
    assert_type(Store.fetch.amap(store, source), AsyncIterator[bytes])
    assert_type(await Store.of_class(["one"]), list[int])
    assert_type(await store.static("one"), int)


@aio_inference.dynamically(pad_token={"input_ids": 0})
async def encode(features: dict[str, Tensor]) -> Tensor:
    return features["input_ids"]


@aio_inference.dynamically
def encode_plain(features: dict[str, Tensor]) -> list[Tensor]:
    return [features["input_ids"]]


async def looped_inference(features: dict[str, Tensor]) -> None:
    assert_type(encode, aio_inference.BatchedInference[Tensor])
    assert_type(encode_plain, aio_inference.BatchedInference[list[Tensor]])
    assert_type(await encode(features), Tensor)
    assert_type(await encode_plain.acall(input_ids=features["input_ids"]), list[Tensor])
    assert_type(encode.amap([features]), AsyncIterator[Tensor])


async def wrong_on_loops(store: Store) -> None:
    await looped(3)  # type: ignore[call-overload]
    await store.fetch([3])  # type: ignore[list-item]
    await Store.fetch("one")  # type: ignore[call-overload]
    looped.submit("one")  # type: ignore[attr-defined]
    looped.map(["one"])  # type: ignore[attr-defined]
    looped.shutdown()  # type: ignore[attr-defined]
    aio.dynamically(batchsize=64)  # type: ignore[call-overload]
    aio.dynamically(priority_strategy=1)  # type: ignore[call-overload]
    with looped:  # type: ignore[attr-defined]
        pass


# -- two columns ------------------------------------------------------------------------------------------


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
    assert_type(pair.map(texts, numbers), Iterator[float])
    assert_type(pair.amap(texts, numbers), AsyncIterator[float])
    assert_type(pair.options(deadline_ms=5)("a", 1), float)
    assert_type(pair.stats, Stats)
    assert_type(pair_coroutine("a", 1), float)
    assert_type(pairs.pair("a", 1), bytes)
    assert_type(pairs.pair(texts, numbers), list[bytes])
    assert_type(pairs.with_options.map(texts, numbers), Iterator[bytes])
    assert_type(await pairs.with_options.acall("a", 1), bytes)


def wrong_columns(texts: list[str], numbers: list[int]) -> None:
    pair(1, "a")  # type: ignore[call-overload]
    pair(numbers, texts)  # type: ignore[arg-type]
    pair(texts, 1)  # type: ignore[call-overload]
    pair("a", 1, 2)  # type: ignore[call-overload]
    pair.map(numbers, numbers)  # type: ignore[arg-type]


# -- streams ----------------------------------------------------------------------------------------------


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
    assert_type(tokens.options(deadline_ms=5).stream("a"), Stream[str])
    assert_type(tokens.stream("a").close(), None)
    assert_type(await tokens.astream("a").aclose(), None)
    assert_type(model.tokens.stream("a"), Stream[int])
    assert_type(model.asynchronous.astream("a"), AsyncStream[bytes])
    tokens.stream(1)  # type: ignore[arg-type]
    model.tokens.stream(1)  # type: ignore[arg-type]


# -- inside the batch function, options, live changes -----------------------------------------------------


def inside() -> None:
    batch = batched.current_batch()
    assert_type(batch, batched.CurrentBatch)
    assert_type(batch.size, int)
    assert_type(batch.contexts, list[Context])
    assert_type(batch.cancelled(), bool)


@batched.dynamically(
    max_concurrent_batches=2,
    max_queue_size=100,
    on_full="wait",
    isolate_errors=True,
    group_by=len,
    cache={},
    cache_key=str.lower,
)
def served(sentences: list[str]) -> list[int]:
    return plain(sentences)


class Client:
    async def get(self, key: str) -> int | None:
        return None

    async def set(self, key: str, value: int, expire: float | None = None) -> bool:
        return True


class NoCache:
    def get(self, key: str) -> int | None:
        return None


def options_of_servers(known: dict[str, int]) -> None:
    aio.dynamically(plain, cache=Client())
    assert_type(served, BatchedFunction[str, int])
    assert_type(batched.dynamically(plain, cache=known, max_queue_size=None), BatchedFunction[str, int])
    assert_type(
        bare.configure(
            batch_size=8,
            timeout_ms=1,
            small_batch_threshold=2,
            max_queue_size=None,
            on_full="raise",
            isolate_errors=True,
        ),
        None,
    )
    tokens.configure(batch_size=8)
    pair.configure(on_full="wait")
    assert_type(bare.stats.total_rejected, int)
    assert_type(bare.stats.total_cached, int)
    assert_type(bare.stats.fits_memory, int | None)
    assert_type(bare.stats.best_batch_size, int | None)
    assert_type(bare.stats.total_divided, int)
    assert_type(bare.explain(), str)
    assert_type(bare.stats.isolation_paused, bool)
    assert_type(bare.stats.apart_time, float)


def wrong_options_of_servers() -> None:
    batched.dynamically(plain, on_full="drop")  # type: ignore[call-overload]
    batched.dynamically(plain, group_by="key")  # type: ignore[call-overload]
    batched.dynamically(plain, cache=3)  # type: ignore[call-overload]
    batched.dynamically(plain, cache=NoCache())  # type: ignore[call-overload]
    batched.dynamically(plain, isolate_errors="yes")  # type: ignore[call-overload]
    bare.configure(max_concurrent_batches="2")  # type: ignore[arg-type]
    bare.configure(batch_size="8")  # type: ignore[arg-type]
    bare.configure(on_full="drop")  # type: ignore[arg-type]


# -- mistakes ---------------------------------------------------------------------------------------------


def wrong_items(model: Model, numbers: list[int], source: AsyncIterator[int]) -> None:
    bare(3)  # type: ignore[call-overload]
    bare([3])  # type: ignore[list-item]
    bare(numbers)  # type: ignore[arg-type]
    bare(("one", "two"))  # type: ignore[call-overload]
    bare("one", "two")  # type: ignore[call-overload]
    bare(sentences=3)  # type: ignore[call-overload]
    bare.submit(3)  # type: ignore[call-overload]
    bare.map(numbers)  # type: ignore[arg-type]
    bare.map([["one"]])  # type: ignore[list-item]
    bare.amap(source)  # type: ignore[arg-type]
    model.embed(3)  # type: ignore[call-overload]
    Model.embed("one")  # type: ignore[call-overload]
    Model.embed(model, 3)  # type: ignore[call-overload]
    Model.embed.submit(model, 3)  # type: ignore[call-overload]


async def wrong_items_async(model: Model) -> None:
    await bare.acall(3)  # type: ignore[call-overload]
    await Model.embed.acall(model, 3)  # type: ignore[call-overload]
    await bare("one")  # type: ignore[misc]


def by_length() -> None:
    assert_type(batched.dynamically(plain, length=len, max_batch_length=4096), BatchedFunction[str, int])
    assert_type(aio.dynamically(plain, length=len), aio.BatchedFunction[str, int])
    inference.dynamically(max_batch_length=4096)
    assert_type(bare.stats.chosen, dict[str, int])
    bare.configure(max_batch_length=64)
    assert_type(batched.dynamically(plain, length="auto"), BatchedFunction[str, int])
    batched.dynamically(length=3)  # type: ignore[call-overload]
    batched.dynamically(length="long")  # type: ignore[call-overload]
    batched.dynamically(max_batch_length="x")  # type: ignore[call-overload]
    inference.dynamically(length=len)  # type: ignore[call-overload]
    inference.dynamically(max_pieces=5)  # type: ignore[call-overload]
    batched.dynamically(max_pieces=5)
    batched.dynamically(max_pieces="5")  # type: ignore[call-overload]


def wrong_options() -> None:
    batched.dynamically(batchsize=64)  # type: ignore[call-overload]
    batched.dynamically(plain, batchsize=64)  # type: ignore[call-overload]
    batched.dynamically(batch_size="64")  # type: ignore[call-overload]
    batched.dynamically(batch_size=1.5)  # type: ignore[call-overload]
    batched.dynamically(plain, 64, "5")  # type: ignore[call-overload]
    batched.dynamically(plain, 64, 5.0, 8, "name")  # type: ignore[call-overload]
    batched.dynamically(timeout_ms=None)  # type: ignore[call-overload]
    batched.dynamically(name=3)  # type: ignore[call-overload]
    bare.options(deadline_ms="x")  # type: ignore[arg-type]
    bare.options(priority="urgent")  # type: ignore[arg-type]
    bare.options(return_exceptions=1)  # type: ignore[arg-type]
    bare.options(timeout=1)  # type: ignore[call-arg]
    bare.options(200)  # type: ignore[call-arg]


def wrong_functions(model: Model) -> None:
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


def wrong_places() -> None:
    repr(Model.embed.stats)  # type: ignore[attr-defined]
    Model.embed.options(priority="bulk")  # type: ignore[attr-defined]
    Model.embed.shutdown()  # type: ignore[attr-defined]
    bare.stats.total_batches = 0  # type: ignore[misc]
