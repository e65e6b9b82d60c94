"""Which objects `cache` takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextvars import ContextVar
from typing import Any

import cachetools
import numpy as np
import pytest

import batched


class AsyncItems:
    """What would answer with coroutines."""

    async def __getitem__(self, key: Any) -> Any: ...
    async def __setitem__(self, key: Any, value: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache": 3}, TypeError, "cache must be a mapping"),
        ({"cache": dict}, TypeError, r"got the class dict: write dict\(...\)"),
        ({"cache": cachetools.LRUCache}, TypeError, r"got the class LRUCache: write LRUCache\(...\)"),
        (
            {"cache": defaultdict(list)},
            TypeError,
            "missing keys, as defaultdict does .*use a dict",
        ),
        ({"cache": Counter()}, TypeError, "missing keys, as Counter does"),
        ({"cache": []}, TypeError, r"cache must be a mapping such as a dict, .* got \[\] of type list"),
        ({"cache": np.zeros(3)}, TypeError, "cache must be a mapping such as a dict, .* ndarray"),
        ({"cache": "redis://"}, TypeError, "cache must be a mapping such as a dict, .* str"),
        (
            {"cache": ContextVar("cache")},
            TypeError,
            "a set that takes a key and a value; those of ContextVar take other",
        ),
        (
            {"cache": AsyncItems()},
            TypeError,
            r"an asynchronous cache needs get and set, but AsyncItems has only \[\]",
        ),
        ({"cache": {}, "cache_key": "k"}, TypeError, "cache_key must be a function"),
    ],
)
def test_senseless_options_are_refused(options: Any, error: Any, message: str) -> None:
    """At decoration."""
    with pytest.raises(error, match=message):
        batched.dynamically(len, **options)


def test_an_asynchronous_cache_is_for_the_event_loop_flavours() -> None:
    """A thread has nowhere to await it, nor the half of it."""

    class Remote:
        async def get(self, key: Any) -> Any: ...
        async def set(self, key: Any, value: Any) -> None: ...

    class Half(Remote):
        def get(self, key: Any) -> Any: ...

    for cache in (Remote(), Half()):
        with pytest.raises(TypeError, match="batched.aio"):
            batched.dynamically(len, cache=cache)
