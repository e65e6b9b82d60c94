"""What type checkers make of options, of what changes them, and of what a batch function may ask.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context
from typing import assert_type

import batched
from batched import BatchedFunction, aio, inference
from tests.kit.annotated import annotated


def plain(sentences: list[str]) -> list[int]:
    return [len(sentence) for sentence in sentences]


@batched.dynamically
def bare(sentences: list[str]) -> list[int]:
    return plain(sentences)


@batched.dynamically
def tokens(prompts: list[str]) -> Iterator[list[str]]:
    yield prompts


@batched.dynamically
def pair(texts: list[str], numbers: list[int]) -> list[float]:
    return [len(text) / number for text, number in zip(texts, numbers, strict=True)]


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
    assert_type(annotated(served), BatchedFunction[str, int])
    assert_type(
        annotated(batched.dynamically(plain, cache=known, max_queue_size=None)), BatchedFunction[str, int]
    )
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


def sizes() -> None:
    assert_type(annotated(batched.dynamically(plain, batch_sizes=(1, 2, 4))), BatchedFunction[str, int])
    assert_type(annotated(aio.dynamically(plain, batch_sizes=[1, 2])), aio.BatchedFunction[str, int])
    inference.dynamically(batch_sizes=range(1, 9), pad_to_lengths=(32, 64))
    inference.dynamically(pad_to_lengths={"ids": [32, 64]})
    bare.warm_up("a", progress=print)
    bare.shapes()
    assert_type(bare.stats.total_copies, int)
    assert_type(bare.stats.copies_percent, float)
    batched.dynamically(batch_sizes=4)  # type: ignore[call-overload]
    inference.dynamically(pad_to_lengths=4)  # type: ignore[call-overload]
    batched.dynamically(pad_to_lengths=(4,))  # type: ignore[call-overload]
    bare.configure(batch_sizes=(1, 2))  # type: ignore[call-arg]


def wrong_options_of_servers() -> None:
    batched.dynamically(plain, on_full="drop")  # type: ignore[call-overload]
    batched.dynamically(plain, group_by="key")  # type: ignore[call-overload]
    batched.dynamically(plain, cache=3)  # type: ignore[call-overload]
    batched.dynamically(plain, cache=NoCache())  # type: ignore[call-overload]
    batched.dynamically(plain, isolate_errors="yes")  # type: ignore[call-overload]
    bare.configure(max_concurrent_batches="2")  # type: ignore[arg-type]
    bare.configure(batch_size="8")  # type: ignore[arg-type]
    bare.configure(on_full="drop")  # type: ignore[arg-type]


def by_length() -> None:
    assert_type(
        annotated(batched.dynamically(plain, length=len, max_batch_length=4096)), BatchedFunction[str, int]
    )
    assert_type(annotated(aio.dynamically(plain, length=len)), aio.BatchedFunction[str, int])
    inference.dynamically(max_batch_length=4096)
    assert_type(bare.stats.chosen, dict[str, int])
    bare.configure(max_batch_length=64)
    assert_type(annotated(batched.dynamically(plain, length="auto")), BatchedFunction[str, int])
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
    batched.dynamically(timeout_ms="5")  # type: ignore[call-overload]
    batched.dynamically(timeout_ms="auto")
    bare.configure(timeout_ms="auto")
    batched.dynamically(name=3)  # type: ignore[call-overload]
    bare.options(deadline_ms="x")  # type: ignore[call-overload]
    bare.options(priority="urgent")  # type: ignore[call-overload]
    bare.options(return_exceptions=1)  # type: ignore[call-overload]
    bare.options(request_cache="redis")  # type: ignore[call-overload]
    assert_type(annotated(bare.options(request_cache={})), BatchedFunction[str, int])
    assert_type(annotated(bare.options(request_cache=None)), BatchedFunction[str, int])
    bare.options(timeout=1)  # type: ignore[call-overload]
    bare.options(200)  # type: ignore[call-overload]
