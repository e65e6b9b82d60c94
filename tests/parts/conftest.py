"""Fixtures of the tests of caches: callers in threads, and functions for event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from batched import aio
from tests.kit.flavours import as_async


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for callers; a caller that hangs does not make the test hang."""
    pool = ThreadPoolExecutor(4)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(params=["async", "plain"])
def decorate(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both kinds of functions for event loops: on the loop of the callers, and in a thread."""

    def decorated(function: Any, cache: Any, **options: Any) -> Any:
        function = as_async(function) if request.param == "async" else function
        return aio.dynamically(function, timeout_ms=0, name="f", cache=cache, **options)

    return decorated
