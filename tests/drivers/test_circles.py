"""Functions that wait for each other in their workers: the call that closes the circle gets an error."""

from __future__ import annotations

import _thread
import os
import threading
import weakref
from collections.abc import Callable
from gc import collect
from typing import Any

import pytest

import batched
from batched._drivers import circles, stages
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.script import run_script
from tests.kit.threads import workers

OWN: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "shared workers": lambda: {"workers": batched.Workers(["one"])},
    "a bounded queue": lambda: {"max_queue_size": 4, "on_full": "wait"},
    "keys": lambda: {"group_by": lambda _: 0},
    "finish": lambda: {"finish": list},
}


def _ring(size: int, options: Callable[[], dict[str, Any]], ask: Callable[[Any, int], int]) -> list[Any]:
    """Return functions of which each asks the next one for one less than its item, until that is 0."""
    fns: list[Any] = []

    def function(at: int) -> Callable[[list[int]], list[int]]:
        return lambda items: [ask(fns[(at + 1) % size], item - 1) if item else 0 for item in items]

    for at in range(size):
        fns.append(batched.dynamically(function(at), timeout_ms=0, name=f"f{at}", **options()))
    return fns


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("size", [2, 3])
def test_functions_that_call_each_other_in_a_circle_get_an_error(kind: str, size: int) -> None:
    """It names the circle, comes at the door, and leaves all workers as they were."""
    fns = _ring(size, OWN[kind], lambda fn, item: fn(item))
    told = r"f0 was called from inside .*\(f0 waits for f1, f1 waits for .*f0\).*f0\.__wrapped__"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=told):
            fns[0].submit(size).result(PATIENCE_S)
        assert [fn.submit(size - 1).result(PATIENCE_S) for fn in fns] == [0] * size
    assert all(fn.stats.queue_size == fn.stats.running_items == 0 for fn in fns)


def test_a_circle_of_lists_gets_an_error() -> None:
    """A list may fail by an item that another worker runs; where there is no other, it waits for ever."""
    fns = _ring(2, dict, lambda fn, item: fn([item, 0])[0])
    with pytest.raises(RuntimeError, match="f0 waits for f1, f1 waits for f0"):
        fns[0].submit([2, 0]).result(PATIENCE_S)
    assert fns[0].submit([1, 0]).result(PATIENCE_S) == [0, 0]


def test_functions_in_a_circle_with_a_free_worker_for_the_inner_call_are_answered() -> None:
    """With two workers each the inner call finds one; a third one does not."""
    fns = _ring(2, lambda: {"max_concurrent_batches": 2}, lambda fn, item: fn(item))
    assert fns[0].submit(3).result(PATIENCE_S) == 0
    with pytest.raises(RuntimeError, match=r"\(f0 waits for f1, f1 waits for f0\)"):
        fns[0].submit(4).result(PATIENCE_S)
    assert fns[0].submit(3).result(PATIENCE_S) == 0


def test_only_the_call_that_closes_a_circle_gets_the_error() -> None:
    """The other worker, which waits behind the batch of that call, is answered after it; so is a stranger."""
    may_ask = threading.Event()

    def first(items: list[int]) -> list[int]:
        return [second(item) if item else item for item in items]

    def second(items: list[int]) -> list[int]:
        if 7 in items:
            assert may_ask.wait(PATIENCE_S)
            fn(0)
        return items

    fn: Any = batched.dynamically(first, timeout_ms=0)
    second = batched.dynamically(second, timeout_ms=0, batch_size=1)
    closing = second.submit(7)
    until(lambda: second.stats.running_items == 1)
    waiting = fn.submit(3)
    until(lambda: second.stats.queue_size == 1)
    stranger = second.submit(4)
    may_ask.set()
    with pytest.raises(RuntimeError, match="first waits for second, second waits for first"):
        closing.result(PATIENCE_S)
    assert (waiting.result(PATIENCE_S), stranger.result(PATIENCE_S)) == (3, 4)


def test_a_call_that_does_not_wait_for_ever_is_no_part_of_a_circle() -> None:
    """One with a deadline ends by itself; of a future its caller may not ask."""
    with_deadlines = _ring(2, dict, lambda fn, item: fn.options(deadline_ms=20)(item))
    with pytest.raises(TimeoutError):
        with_deadlines[0].submit(9).result(PATIENCE_S)
    futures: list[Any] = []
    with_futures = _ring(2, dict, lambda fn, item: futures.append(fn.submit(item)) or 5)
    assert with_futures[0].submit(4).result(PATIENCE_S) == 5
    until(lambda: len(futures) == 4)
    assert [future.result(PATIENCE_S) for future in futures] == [5, 5, 5, 0]


def test_functions_that_share_workers_are_in_the_circle_of_one_of_them() -> None:
    """The worker that waits runs another function than the one that is called: it is the same worker."""
    shared = batched.Workers(["one"])
    outer: Any = batched.dynamically(lambda items: [inner(item) for item in items], workers=shared)
    other: Any = batched.dynamically(lambda items: items, workers=shared, name="other")
    inner: Any = batched.dynamically(lambda items: [other(item) for item in items], name="inner")
    with pytest.raises(RuntimeError, match="other waits for inner, inner waits for other"):
        outer.submit(1).result(PATIENCE_S)
    assert inner.submit(1).result(PATIENCE_S) == 1


@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_a_stage_in_a_thread_of_its_own_is_in_the_circle_of_its_worker(stage: str) -> None:
    """The worker, which is in the function and waits for no call, would wait for that thread."""
    prepared: list[list[int]] = []

    def prepare(items: list[int]) -> list[int]:
        prepared.append(items)
        return ask(items) if stage == "prepare" else items

    def finish(items: list[int]) -> list[int]:
        return ask(items) if stage == "finish" else items

    def ask(items: list[int]) -> list[int]:
        return [other(2) if item == 3 else item for item in items]

    def ask_back(items: list[int]) -> list[int]:
        try:
            return [fn(item - 1) for item in items]
        finally:
            gate.open()

    gate = Gate(list)
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "adaptive": False}
    fn = batched.dynamically(gate, name="f0", prepare=prepare, finish=finish, **options)
    other = batched.dynamically(ask_back, name="f1")
    for _ in range(8):  # so that it is known how long its stages take
        fn(0)
    gate.close()
    both = [[3, 3], [0, 1]] if stage == "finish" else [[0, 1], [3, 3]]
    futures = {items[0]: fn.submit(items) for items in both}
    until(lambda: prepared[-2:] == both)
    if stage == "finish":
        gate.open()
    with pytest.raises(RuntimeError, match=r"\(f0 waits for f1, f1 waits for f0\)"):
        futures[3].result(PATIENCE_S)
    assert futures[0].result(PATIENCE_S) == fn([0, 1]) == [0, 1]
    fn.shutdown()


@pytest.mark.parametrize("is_past", [True, False])
def test_only_a_call_that_is_past_a_stage_does_not_wait_for_the_thread_of_that(is_past: bool) -> None:
    """`f1` waits for a call of `f0` as the next batch of that is prepared, which asks `f1`."""
    asks = threading.Event()
    prepared: list[list[int]] = []

    def prepare(items: list[int]) -> list[int]:
        prepared.append(items)
        if items == [3, 3]:
            assert asks.wait(PATIENCE_S)
            other(2)
        return items

    gate = Gate(list)
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "adaptive": False}
    fn = batched.dynamically(gate, name="f0", prepare=prepare, **options)
    other = batched.dynamically(lambda items: [fn(1) if item == 7 else item for item in items], name="f1")
    for _ in range(8):
        fn(0)
    gate.close()
    first = other.submit(7) if is_past else fn.submit(1)
    until(lambda: gate.batches[-1] == [1])
    second = fn.submit([3, 3])
    until(lambda: prepared[-1] == [3, 3])
    if not is_past:
        first = other.submit(7)
        until(lambda: fn.stats.queue_size == 1)
    asks.set()
    if is_past:
        until(lambda: other.stats.queue_size == 1)
    gate.open()
    assert first.result(PATIENCE_S) == 1
    if is_past:
        assert second.result(PATIENCE_S) == [3, 3]
    else:
        with pytest.raises(RuntimeError, match=r"\(f1 waits for f0, f0 waits for f1\)"):
            second.result(PATIENCE_S)
    fn.shutdown()


def test_a_worker_whose_call_has_been_answered_is_in_no_circle() -> None:
    """It has called, and does something else: what calls its function waits for it, and is answered."""
    gate = Gate(shut=True)
    inner: Any = batched.dynamically(lambda items: items, timeout_ms=0)
    busy: Any = batched.dynamically(lambda items: [inner(item) for item in gate(items)], timeout_ms=0)
    asks: Any = batched.dynamically(lambda items: [busy(item) for item in items], timeout_ms=0)
    first = busy.submit(1)
    gate.wait_for_batch()
    second = asks.submit(2)
    until(lambda: busy.stats.queue_size == 1)
    gate.open()
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (1, 2)


def test_nothing_is_kept_of_a_call_that_a_worker_has_made() -> None:
    """Neither its item and result, nor the function, though the worker that has called lives on."""

    class Item:
        """Something that can be referred to weakly."""

    inner: Any = batched.dynamically(lambda items: [Item() for _ in items], timeout_ms=0)
    kept: list[weakref.ref[Any]] = []

    def ask(items: list[int]) -> list[int]:
        for _ in items:
            item = Item()
            kept.extend([weakref.ref(item), weakref.ref(inner(item))])
        return items

    outer: Any = batched.dynamically(ask, timeout_ms=0, name="outer")
    assert outer.submit(1).result(PATIENCE_S) == 1
    until(lambda: all(reference() is None for reference in kept))
    assert len(kept) == 2
    function, inner = weakref.ref(inner), None
    until(lambda: collect() >= 0 and function() is None)
    assert len(workers("outer")) == 1


@pytest.mark.thread_unsafe(reason="looks at the workers of the whole process")
def test_a_worker_that_has_ended_is_forgotten() -> None:
    """The next thread may have its id."""
    seen: list[int] = []

    def note(items: Any) -> Any:
        seen.append(_thread.get_ident())
        return items

    shared = batched.Workers(["one"])
    fns: list[Any] = [
        batched.dynamically(note, timeout_ms=0),
        batched.dynamically(note, timeout_ms=0, workers=shared),
        batched.dynamically(lambda items: items, timeout_ms=0, prepare=note, finish=note),
    ]
    assert [fn.submit(1).result(PATIENCE_S) for fn in fns] == [1, 1, 1]
    assert set(seen) <= circles.WORKERS
    for one in (*fns, shared):
        one.shutdown()
    assert not circles.WORKERS & set(seen)


def test_a_worker_of_stages_may_end_while_others_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look whether its other threads are noted, and which they are, would be two steps."""

    class Ending(dict[Any, Any]):
        def __contains__(self, worker: object) -> bool:
            return self.pop(worker, None) is not None

    monkeypatch.setattr(circles, "LINES", Ending())
    monkeypatch.setattr(stages, "LINES", circles.LINES)
    inner = batched.dynamically(lambda items: items, timeout_ms=0, finish=list)
    outer = batched.dynamically(lambda items: [inner(item) for item in items], timeout_ms=0)
    assert inner.submit(0).result(PATIENCE_S) == 0
    assert circles.LINES
    assert outer.submit(1).result(PATIENCE_S) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_a_worker_has_forked_has_no_part_in_the_waits_of_the_parent() -> None:
    """The functions that the parent waits for have workers of their own there."""
    said = run_script(
        """
        @batched.dynamically(timeout_ms=0)
        def outer(items):
            return [inner(item) for item in items]

        @batched.dynamically(timeout_ms=0)
        def inner(items):
            pid = os.fork()
            if not pid:
                os._exit(0 if items == [2] or outer(2) == inner(2) == 2 else 1)
            return [os.waitpid(pid, 0)[1]] if items != [2] else items

        print(outer(1))
        """
    )
    assert said.split() == ["0"]
