"""The decorators as the core's workloads use them: never waiting, or with all defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import batched
from batched import aio

__all__ = ["dynamically", "dynamically_on_loops", "use_defaults"]

_GIVEN = "BENCHMARK_OPTIONS"  # the environment variable with the options, for processes that are started
_options: dict[str, Any] = json.loads(os.environ.get(_GIVEN, '{"timeout_ms": 0}'))


def use_defaults() -> None:
    """Leave it to what is learned whether a batch waits."""
    _options.clear()
    os.environ[_GIVEN] = "{}"


def dynamically(function: Callable[..., Any], **options: Any) -> batched.BatchedFunction[Any, Any]:
    """Return `function` for threads and tasks."""
    batched_function: batched.BatchedFunction[Any, Any] = batched.dynamically(function, **_options, **options)
    return batched_function


def dynamically_on_loops(function: Callable[..., Any], **options: Any) -> aio.BatchedFunction[Any, Any]:
    """Return `function` for tasks alone."""
    batched_function: aio.BatchedFunction[Any, Any] = aio.dynamically(function, **_options, **options)
    return batched_function
