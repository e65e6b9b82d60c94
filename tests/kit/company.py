"""Callers of a function over arrays that all wait while its worker is held, and what arrays they compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import torch


def copied(features: dict[Any, Any]) -> dict[Any, Any]:
    """Return copies of features: a batch function may write into its own."""
    return {key: value.copy() if is_numpy(value) else value.clone() for key, value in features.items()}


def is_numpy(value: Any) -> bool:
    """Whether it is of numpy."""
    return isinstance(value, np.ndarray)


class Company:
    """Callers whose calls all wait while the worker is held, so that no batch is an accident."""

    def __init__(self, function: Callable[..., Any], flavour: Flavour, **options: Any) -> None:
        def answer(features: dict[Any, Any]) -> Any:
            return features["hold"] if "hold" in features else function(features)

        self.flavour = flavour
        self.gate = Gate(answer, shut=True, note=copied)
        self.fn = flavour.decorate_arrays(self.gate, timeout_ms=0, name="f", **options)
        flavour.start(self.fn, hold=np.zeros(1))
        self.gate.wait_for_batch()

    def futures(self, *calls: Any) -> list[Future[Any]]:
        """Queue all of `calls`, then let the worker go."""
        futures = [self.flavour.start(self.fn, call) for call in calls]
        self.gate.open()
        return futures

    def answers(self, *calls: Any) -> list[Any]:
        """Return the answers to `calls`, which have all waited together."""
        return [future.result(PATIENCE_S) for future in self.futures(*calls)]

    def errors(self, *calls: Any) -> list[Any]:
        """Return the errors that `calls` end with, None for an answer."""
        return [future.exception(PATIENCE_S) for future in self.futures(*calls)]

    @property
    def batches(self) -> list[dict[Any, Any]]:
        """What the function was given, after the call that held the worker."""
        return self.gate.batches[1:]


@contextmanager
def company(
    function: Callable[..., Any], *, flavour: Flavour | None = None, **options: Any
) -> Iterator[Company]:
    """Callers of `function` that share its batches, until the end of the block."""
    there = Company(function, flavour or Flavour(), **options)
    try:
        yield there
    finally:
        there.gate.open()
        there.flavour.close(there.fn)


def itself(features: dict[Any, Any]) -> Any:
    """A function with an output as long as its input."""
    return features["x"]


def same(one: Any, other: Any) -> bool:
    """Whether both are the same arrays, nested alike: type, dtype, shape and every value."""
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return (
            type(one) is type(other)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if type(one) is not type(other) or (one.dtype, tuple(one.shape)) != (other.dtype, tuple(other.shape)):
        return False
    if is_numpy(one):
        return np.array_equal(one, other)
    return bool(torch.equal(one, other))


def joined(parts: list[Any]) -> Any:
    """Return the rows of all parts."""
    # numpy would turn the byte order into the machine's.
    return np.concatenate(parts).astype(parts[0].dtype) if is_numpy(parts[0]) else torch.cat(parts)


def rows_of(arrays: list[Any]) -> Any:
    """Return arrays of one shape as the rows of one array."""
    return joined([row[None] for row in arrays])


def is_torch(value: Any) -> bool:
    """Whether it is of torch."""
    return isinstance(value, torch.Tensor)


def padded(*calls: Any, **options: Any) -> dict[Any, Any]:
    """Return what the function is given of `calls` that share a batch."""
    with company(lambda features: np.zeros(len(next(iter(features.values())))), **options) as there:
        there.answers(*calls)
        assert len(there.batches) == 1
        return there.batches[0]


class Readable(Mapping[str, Any]):
    """A mapping that cannot be written to."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
