"""A cache keeps results, and not the instance that made them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import batched
from tests.kit.gate import until


def test_an_instance_is_collected_though_its_results_are_kept() -> None:
    """The cache keeps results, not who made them."""
    cache: dict[Any, Any] = {}

    class Model:
        @batched.dynamically(timeout_ms=0, cache=cache)
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    assert model.embed([1, 2, 1]) == [1, 2, 1]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)
    assert len(cache) == 2
