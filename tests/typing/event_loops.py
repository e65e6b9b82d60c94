"""What type checkers make of `batched.aio`, for lists and for arrays.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import assert_type

from torch import Tensor

from batched import Stats, aio
from batched.aio import inference as aio_inference
from batched.typing import AsyncAnswers
from tests.kit.annotated import annotated


def plain(sentences: list[str]) -> list[int]:
    return [len(sentence) for sentence in sentences]


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
    assert_type(annotated(looped), aio.BatchedFunction[str, int])
    assert_type(annotated(looped_plain), aio.BatchedFunction[str, int])
    assert_type(annotated(looped_positional), aio.BatchedFunction[str, int])
    assert_type(annotated(aio.dynamically(plain, batch_size=64)), aio.BatchedFunction[str, int])
    assert_type(annotated(aio.dynamically(store.encode)), aio.BatchedFunction[str, int])
    assert_type(await looped("one"), int)
    assert_type(await looped(items), list[int])
    assert_type(await looped(sentences="one"), int)
    assert_type(await looped.acall("one"), int)
    assert_type(await looped_plain.acall(items), list[int])
    assert_type(looped.amap(source), AsyncAnswers[int])
    assert_type(looped.amap(source, with_items=True), AsyncAnswers[tuple[str, int]])
    assert_type(annotated(looped.options(deadline_ms=200)), aio.BatchedFunction[str, int])
    assert_type(await looped.options(deadline_ms=200)(items), list[int])
    assert_type(looped.stats, Stats)
    async with looped as entered:
        assert_type(annotated(entered), aio.BatchedFunction[str, int])
    assert_type(await looped.aclose(), None)

    assert_type(annotated(store.fetch), aio.BatchedFunction[str, bytes])
    assert_type(await store.fetch("one"), bytes)
    assert_type(await store.fetch(["one"]), list[bytes])
    assert_type(await Store.fetch(store, "one"), bytes)
    assert_type(await Store.fetch.acall(store, ["one"]), list[bytes])
    assert_type(Store.fetch.amap(store, source), AsyncAnswers[bytes])
    assert_type(Store.fetch.amap(store, source, with_items=True), AsyncAnswers[tuple[str, bytes]])
    assert_type(await Store.of_class(["one"]), list[int])
    assert_type(await store.static("one"), int)


@aio_inference.dynamically(pad_token={"input_ids": 0})
async def encode(features: dict[str, Tensor]) -> Tensor:
    return features["input_ids"]


@aio_inference.dynamically
def encode_plain(features: dict[str, Tensor]) -> list[Tensor]:
    return [features["input_ids"]]


async def looped_inference(features: dict[str, Tensor]) -> None:
    assert_type(annotated(encode), aio_inference.BatchedInference[Tensor])
    assert_type(annotated(encode_plain), aio_inference.BatchedInference[list[Tensor]])
    assert_type(await encode(features), Tensor)
    assert_type(await encode_plain.acall(input_ids=features["input_ids"]), list[Tensor])
    assert_type(encode.amap([features]), AsyncAnswers[Tensor])
    assert_type(encode.amap([features], with_items=True), AsyncAnswers[tuple[dict[str, Tensor], Tensor]])


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
