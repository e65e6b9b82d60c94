"""What type checkers make of `batched.Workers`, and of functions that use them.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import batched
from batched import BatchedFunction, Worker, Workers, WorkersStats, aio, inference
from batched.aio import inference as aio_inference
from batched.typing import FunctionShare, WorkerStats
from tests.kit.annotated import annotated


class Model:
    def __init__(self, device: str) -> None:
        self.device = device


def load(device: str) -> Model:
    return Model(device)


async def connect(address: str) -> bytes:
    return address.encode()


def of_any_number(number: int) -> Model:
    return Model(str(number))


def plain(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


gpus = batched.Workers(["cuda:0", "cuda:1"], initializer=load, name="gpus")


def made() -> None:
    assert_type(gpus, Workers[Model])
    assert_type(batched.Workers(2, initializer=Model), Workers[Model])
    assert_type(batched.Workers((str(n) for n in range(2)), initializer=connect), Workers[bytes])
    assert_type(batched.Workers(2), Workers[None])
    assert_type(batched.Workers().names, tuple[str, ...])
    batched.Workers(2, load)  # type: ignore[call-overload]
    batched.Workers([0, 1])  # type: ignore[list-item]
    batched.Workers(2, initializer=of_any_number)  # type: ignore[arg-type]


def used() -> None:
    with gpus as entered:
        assert_type(entered, Workers[Model])
    assert_type(gpus.weighted(3), Workers[Model])
    assert_type(gpus.start(), None)
    assert_type(gpus.shutdown(wait=False, cancel_futures=True), None)
    gpus.weighted("3")  # type: ignore[arg-type]


def figures() -> None:
    stats = gpus.stats
    assert_type(stats, WorkersStats)
    assert_type(stats.busy, float)
    assert_type(stats.workers, tuple[WorkerStats, ...])
    assert_type(stats.workers[0].error, str | None)
    assert_type(stats.functions["embed"], FunctionShare)
    assert_type(stats.functions["embed"].seconds, float)


@batched.dynamically(workers=gpus)
def embed(texts: list[str]) -> list[int]:
    worker = batched.current_worker()
    assert_type(worker, Worker)
    assert_type(worker.index, int)
    assert_type(worker.name, str)
    assert_type(worker.state, Any)
    return [len(text) for text in texts]


@batched.dynamically(workers=gpus.weighted(2))
async def embed_awaited(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@batched.dynamically(workers=gpus)
def spell(words: list[str]) -> Iterator[list[str]]:
    yield words


@aio.dynamically(workers=gpus)
def embed_on_loop(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@inference.dynamically(workers=gpus)
def infer(features: dict[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    return features["x"]


@aio_inference.dynamically(workers=gpus)
def infer_on_loop(features: dict[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    return features["x"]


class Adapter:
    @batched.dynamically(workers=gpus)
    def translate(self, texts: list[str]) -> list[str]:
        return texts


def decorated() -> None:
    assert_type(annotated(embed), BatchedFunction[str, int])
    assert_type(annotated(embed_awaited), BatchedFunction[str, int])
    assert_type(spell.stream("abc"), batched.Stream[str])
    assert_type(annotated(embed_on_loop), aio.BatchedFunction[str, int])
    assert_type(annotated(infer), inference.BatchedInference[npt.NDArray[np.float32]])
    assert_type(Adapter().translate("hello"), str)
    assert_type(annotated(batched.dynamically(plain, workers=None)), BatchedFunction[str, int])
    assert_type(annotated(batched.dynamically(plain, workers=gpus)), BatchedFunction[str, int])


def wrong() -> None:
    batched.dynamically(workers=2)  # type: ignore[call-overload]
    batched.dynamically(workers=["cuda:0"])  # type: ignore[call-overload]
    aio.dynamically(workers=2)  # type: ignore[call-overload]
    inference.dynamically(workers=2)  # type: ignore[call-overload]
    embed.configure(workers=gpus)  # type: ignore[call-arg]


def broken(error: Exception) -> None:
    raise batched.RestartWorker from error
