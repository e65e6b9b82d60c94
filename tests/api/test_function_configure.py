"""What `configure` changes, refuses and shows."""

from __future__ import annotations

import copy
import sys
import threading

import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate


def test_a_value_that_makes_no_sense_changes_nothing() -> None:
    """Not even the others of the same call."""
    fn = batched.dynamically(Gate(), batch_size=4)
    before = repr(fn)
    for changes, error, message in (
        ({"batch_size": 8, "timeout_ms": -1}, ValueError, "timeout_ms must be at least 0"),
        ({"batch_size": 8, "on_full": "drop"}, ValueError, "on_full must be 'raise' or 'wait'"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an int"),
        ({"max_queue_size": 0}, ValueError, "max_queue_size must be at least 1"),
        ({"isolate_errors": 1}, TypeError, "isolate_errors must be True or False"),
        ({"max_concurrent_batches": 0}, ValueError, "max_concurrent_batches must be at least 1"),
    ):
        with pytest.raises(error, match=message):
            fn.configure(**changes)
        assert repr(fn) == before


@pytest.mark.parametrize("option", ["group_by", "cache", "cache_key", "name", "pad_token", "batchsize"])
def test_what_cannot_change_is_a_type_error_that_says_what_can(option: str) -> None:
    """And nothing else of the call is changed."""
    fn = batched.dynamically(Gate(), batch_size=4)
    with pytest.raises(
        TypeError, match=f"configure cannot change {option!r}.*; it can change .*batch_size, "
    ):
        fn.configure(**{option: None, "batch_size": 8})
    assert "batch_size=4" in repr(fn)


def test_repr_shows_it() -> None:
    """Of a function, of a method of one instance, of views made before."""

    class Model:
        @batched.dynamically(batch_size=4)
        def embed(self, items: list[int]) -> list[int]:
            return items

    fn = batched.dynamically(Gate(), batch_size=4)
    view = fn.options(deadline_ms=5)
    view.configure(batch_size=8, max_queue_size=100, on_full="wait", isolate_errors=False)
    for shown in (fn, view):
        assert "batch_size=8" in repr(shown)
        assert "max_queue_size=100, on_full='wait', isolate_errors=False" in repr(shown)
    model, other = Model(), Model()
    model.embed.configure(batch_size=8)
    assert "batch_size=8" in repr(model.embed)
    assert "batch_size=4" in repr(other.embed)
    assert "batch_size=4" in repr(Model.embed)
    with pytest.raises(AttributeError, match="use it on an instance"):
        Model.embed.configure(batch_size=8)  # type: ignore[attr-defined]


def test_a_copy_has_what_was_decorated() -> None:
    """Its batcher is its own."""

    class Model:
        @batched.dynamically(batch_size=4, timeout_ms=0)
        def embed(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    model.embed.configure(batch_size=8)
    assert "batch_size=4" in repr(copy.deepcopy(model).embed)


def test_changes_of_different_options_do_not_undo_each_other() -> None:
    """Whatever threads make them at the same time."""
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, small_batch_threshold=0)
    barrier = threading.Barrier(3)

    def change(name: str) -> None:
        barrier.wait(PATIENCE_S)
        for value in range(1, 301):
            fn.configure(**{name: value})

    threads = [
        threading.Thread(target=change, args=[name])
        for name in ("batch_size", "timeout_ms", "small_batch_threshold")
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval)
    assert "batch_size=300, timeout_ms=300, small_batch_threshold=300" in repr(fn)
