"""Nothing is kept of calls that were refused, late, or in a map whose bound was taken away."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

import batched
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import blocked


def test_an_instance_is_collected_after_callers_were_refused_or_late() -> None:
    """Nothing of their calls is kept."""

    class Model:
        @batched.dynamically(batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
        def embed(self, items: list[int]) -> list[int]:
            result: list[int] = gate(items)
            return result

    gate = Gate(shut=True)
    model = Model()
    futures = [model.embed.submit(0)]
    gate.wait_for_batch()
    futures.append(model.embed.submit(1))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            model.embed.options(deadline_ms=10).submit(2)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    assert not blocked(model.embed)
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


def test_an_instance_is_collected_after_a_map_whose_bound_was_taken_away(flavour: Flavour) -> None:
    """The batcher keeps no calls of a map once they are answered, also if the bound has changed meanwhile."""

    class Failed(Exception):
        pass

    def embed(self: Any, items: list[int]) -> list[int]:
        gate(items)
        raise Failed  # whose traceback leads to the instance

    gate = Gate(shut=True)
    cls = type("Model", (), {"embed": flavour.decorate(embed, timeout_ms=0, max_queue_size=8)})
    model = cls()

    def change(model: Any) -> None:
        gate.wait_for_batch()
        model.embed.configure(max_queue_size=None)
        gate.open()

    changing = threading.Thread(target=change, args=(model,), daemon=True)
    changing.start()
    results = flavour.map(model.embed.options(return_exceptions=True), [1, 2])
    changing.join(PATIENCE_S)
    assert list(map(type, results)) == [Failed, Failed]
    reference = weakref.ref(model)
    del model, results, changing
    until(lambda: gc.collect() is not None and reference() is None)
