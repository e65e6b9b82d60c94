"""Batched functions of each flavour that share workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import batched
from tests.kit.flavours import Flavour


def needs_workers(flavour: Flavour) -> None:
    """Skip a test where batches run on the event loop of their callers."""
    if flavour.name == "aio":
        pytest.skip("no worker runs its batches")


def share(flavour: Flavour, workers: Any, *functions: Callable[..., Any], **options: Any) -> list[Any]:
    """Return `functions`, which share `workers`, batched."""
    options = {"batch_size": 4, "timeout_ms": 0, "workers": workers, **options}
    return [
        flavour.decorate(function, name=f"function {number}", **options)
        for number, function in enumerate(functions)
    ]


class Load:
    """An initializer that notes the names for which it was called, and fails as often as it is told."""

    def __init__(self, *, failures: int = 0) -> None:
        self.names: list[str] = []
        self.failures = failures

    def __call__(self, name: str) -> str:
        """Return a state that tells its number."""
        self.names.append(name)
        if self.failures:
            self.failures -= 1
            raise OSError(f"no memory on {name}")
        return f"{name}, load {len(self.names)}"


def worker_that_runs(items: list[Any]) -> list[tuple[int, str, Any]]:
    """Return, for each item, the index, name and state of the worker."""
    worker = batched.current_worker()
    return [(worker.index, worker.name, worker.state) for _ in items]
