"""What type checkers make of what batch functions return: errors among rows, arrays, and the function itself.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
from torch import Tensor

import batched
from batched import BatchedFunction, aio, inference


class NotFoundError(LookupError):
    pass


@batched.dynamically
def halves(numbers: list[int]) -> list[float | ValueError]:
    return [number / 2 for number in numbers]


@batched.dynamically(batch_size=8)
async def any_error(numbers: list[int]) -> list[float | Exception | None]:
    return [number / 2 for number in numbers]


@batched.dynamically
def own_error(numbers: list[int]) -> list[float | NotFoundError]:
    return [number / 2 for number in numbers]


@batched.dynamically
def either(numbers: list[int]) -> list[int | str]:
    return [*numbers]


@batched.dynamically
def pair_error(words: list[str], numbers: list[int]) -> list[bytes | KeyError]:
    return [word.encode() for word in words]


@aio.dynamically
async def looped_halves(numbers: list[int]) -> list[float | ValueError]:
    return [number / 2 for number in numbers]


@batched.dynamically
def vectors(texts: list[str]) -> npt.NDArray[np.float32]:
    return np.zeros((len(texts), 3), np.float32)


@batched.dynamically(batch_size=8)
async def tensors(texts: list[str]) -> Tensor:
    raise NotImplementedError


@aio.dynamically
def looped_vectors(texts: list[str], prompts: list[str]) -> npt.NDArray[np.float32]:
    return np.zeros((len(texts), 3), np.float32)


class Model:
    @batched.dynamically
    def halves(self, numbers: list[int]) -> list[float | ValueError]:
        return [number / 2 for number in numbers]

    @batched.dynamically
    def tensors(self, texts: list[str], scale: float = 1.0) -> Tensor:
        raise NotImplementedError

    @batched.dynamically
    @staticmethod
    def static(numbers: list[int]) -> list[float | ValueError]:
        return [number / 2 for number in numbers]

    @batched.dynamically
    @classmethod
    def of_class(cls, numbers: list[int]) -> list[float | ValueError]:
        return [number / 2 for number in numbers]

    @aio.dynamically
    async def looped(self, texts: list[str]) -> npt.NDArray[np.float32]:
        return np.zeros((len(texts), 3), np.float32)

    @inference.dynamically
    def infer(self, features: dict[str, Tensor]) -> Tensor:
        return features["x"]


def errors(model: Model, numbers: list[int]) -> None:
    assert_type(halves(1), float)
    assert_type(halves(numbers), list[float])
    assert_type(halves.submit(1), Future[float])
    assert_type(any_error(1), float | None)
    assert_type(own_error(1), float)
    assert_type(either(1), int | str)
    assert_type(pair_error("a", 1), bytes)
    assert_type(model.halves(1), float)
    assert_type(model.static(1), float)
    assert_type(Model.of_class(numbers), list[float])


async def errors_in_place(model: Model, numbers: list[int], features: dict[str, Tensor]) -> None:
    in_place = halves.options(return_exceptions=True)
    assert_type(in_place(1), float | Exception)
    assert_type(in_place(numbers), list[float | Exception])
    assert_type(await in_place.acall(1), float | Exception)
    assert_type(in_place.options(deadline_ms=5)(1), float | Exception)
    assert_type(halves.options(return_exceptions=False)(1), float)
    assert_type(halves.options(deadline_ms=5, return_exceptions=True)(1), float | Exception)
    assert_type(model.halves.options(return_exceptions=True)(1), float | Exception)
    assert_type(pair_error.options(return_exceptions=True)("a", 1), bytes | Exception)
    assert_type(await looped_halves(1), float)
    assert_type(await looped_halves.options(return_exceptions=True)(1), float | Exception)
    assert_type(model.infer.options(return_exceptions=True)(features), Tensor | Exception)


async def arrays(model: Model, texts: list[str]) -> None:
    assert_type(vectors("a"), npt.NDArray[np.float32])
    assert_type(vectors(texts), list[npt.NDArray[np.float32]])
    assert_type(tensors("a"), Tensor)
    assert_type(tensors(texts), list[Tensor])
    assert_type(await looped_vectors("a", "b"), npt.NDArray[np.float32])
    assert_type(model.tensors("a"), Tensor)
    assert_type(await model.looped("a"), npt.NDArray[np.float32])


async def functions(model: Model, numbers: list[int], texts: list[str], features: dict[str, Tensor]) -> None:
    assert_type(halves.__wrapped__(numbers), list[float | ValueError])
    assert_type(halves.__wrapped__(numbers=numbers), list[float | ValueError])
    assert_type(await any_error.__wrapped__(numbers), list[float | Exception | None])
    assert_type(vectors.__wrapped__(texts), npt.NDArray[np.float32])
    assert_type(await looped_halves.__wrapped__(numbers), list[float | ValueError])
    assert_type(model.halves.__wrapped__(numbers), list[float | ValueError])
    assert_type(model.tensors.__wrapped__(texts, scale=2.0), Tensor)
    assert_type(model.static.__wrapped__(numbers), list[float | ValueError])
    assert_type(model.infer.__wrapped__(features), Tensor)
    assert_type(halves.options(deadline_ms=5).__wrapped__(numbers), list[float | ValueError])


async def anew(model: Model) -> None:
    """The function itself can be decorated once more, as with other options for a test."""
    assert_type(batched.dynamically(halves.__wrapped__)(1), float)
    assert_type(batched.dynamically(halves.__wrapped__, timeout_ms=5, adaptive=False)(1), float)
    assert_type(batched.dynamically(batch_size=8)(model.halves.__wrapped__)(1), float)
    assert_type(batched.dynamically(pair_error.__wrapped__)("a", 1), bytes)
    assert_type(await aio.dynamically(looped_halves.__wrapped__)(1), float)
    assert_type(await aio.dynamically(any_error.__wrapped__, timeout_ms=5)(1), float | None)


def halve(numbers: list[int]) -> list[float]:
    return [number / 2 for number in numbers]


def annotated() -> BatchedFunction[int, float]:
    """An annotation leaves the type of the function out, wherever the function is decorated."""
    for_short: BatchedFunction[int, float] = batched.dynamically(halve, batch_size=8)
    anything: Any = batched.dynamically(halve)
    return anything if for_short is anything else batched.dynamically(batch_size=8)(halve)


def of_one_item(number: int) -> float:
    return number / 2


def wrong_functions() -> None:
    halves.__wrapped__(3)  # type: ignore[arg-type]
    batched.dynamically(of_one_item)  # type: ignore[arg-type]
    batched.dynamically(batch_size=8)(of_one_item)  # type: ignore[arg-type]
    aio.dynamically(of_one_item)  # type: ignore[arg-type]
