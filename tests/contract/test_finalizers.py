"""Finalizers of items and results may ask the batcher."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import batched
from batched import QueueFullError
from tests.kit.amid import watch_steps
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums
from tests.kit.threads import workers


class Finalized:
    """An item whose finalizer asks the batcher, as code that reports does."""

    def __init__(self, fn: Any, seen: list[Any]) -> None:
        self.fn = fn
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append(self.fn.stats)


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("count", [None, 1, 5], ids=["one", "list", "long list"])
def test_a_finalizer_of_an_item_may_ask_the_batcher(flavour: Flavour, count: int | None, fails: bool) -> None:
    """No lock is held while items that are answered are forgotten: neither worker nor loop stands still."""

    def answer(items: list[Any]) -> list[int]:
        if fails:
            raise ValueError
        return [1] * len(items)

    fn = flavour.decorate(answer, batch_size=2, timeout_ms=0)
    seen: list[Any] = []
    with contextlib.suppress(ValueError):
        if count is None:
            flavour.call(fn, Finalized(fn, seen))
        else:
            flavour.call(fn, [Finalized(fn, seen) for _ in range(count)])
    until(lambda: gc.collect() is not None and len(seen) == (count or 1))
    if not fails:
        assert flavour.call(fn, 1) == 1


class Answer:
    """A result with a finalizer that asks the batcher."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __del__(self) -> None:
        self.fn().stats  # noqa: B018


def test_a_finalizer_of_a_result_may_ask_the_batcher(flavour: Flavour) -> None:
    """Also of a call that had a deadline, while others wait: no lock is held while it is forgotten."""
    found: list[Any] = []
    gate = Gate(lambda items: [Answer(lambda: found[0]) for _ in items], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    found.append(fn)
    futures = [flavour.start(fn.options(deadline_ms=60_000), item) for item in range(6)]
    gate.open()
    while futures:
        futures.pop(0).result(PATIENCE_S)
    assert fn.stats.total_processed == 6
    found.append(None)


ASKS: list[Any] = [
    pytest.param(lambda fn: fn.stats, id="stats"),
    pytest.param(lambda fn: fn.explain(), id="explain"),
    pytest.param(lambda fn: fn.expected_wait_ms(), id="expected_wait_ms"),
    pytest.param(lambda fn: fn.configure(timeout_ms=1), id="configure"),
]


class Amid:
    """Asks a batcher in the middle of each of its steps, as a finalizer may, once in each thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], Any]) -> None:
        self.places: set[str] = set()
        self._ask = ask
        self._fn: Any = None
        self._lock: Any = None
        watch_steps(monkeypatch, self._see)

    def begin(self, fn: Any) -> None:
        """Ask `fn` from now on."""
        self._lock = driver_of(fn).lock
        self._fn = fn

    def end(self) -> None:
        """Ask no more."""
        self._fn = None

    def _see(self, method: str) -> None:
        place = f"{method} in {threading.current_thread().name}"
        if self._fn is not None and self._lock.is_mine() and place not in self.places:
            self.places.add(place)
            self._ask(self._fn)


def use(flavour: Flavour, fn: Any, gate: Gate) -> None:
    """Have calls of all kinds come, wait for room, fail, be late, leave, and be answered."""
    futures = [flavour.start(fn, item) for item in ("a", "bad", ["c"] * 9, "d")]
    gate.wait_for_batch()
    fn.configure(batch_size=3)
    futures.append(flavour.start(fn.options(deadline_ms=1), "late"))
    if flavour.cancels:
        flavour.cancel(flavour.start(fn, "left"))
    gate.open()
    for future in futures:
        future.exception(PATIENCE_S)
    assert flavour.call(fn, ["e", "f"]) == ["e", "f"]


def new_function(flavour: Flavour, **options: Any) -> tuple[Any, Gate]:
    """Return a function that fails for "bad", and its gate, which is shut."""

    def answer(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ValueError("bad")
        return items

    gate = Gate(answer, shut=True)
    return flavour.decorate(gate, batch_size=4, timeout_ms=0, adaptive=False, **options), gate


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("options", [{}, {"max_queue_size": 20, "on_full": "wait"}], ids=["plain", "bounded"])
def test_a_finalizer_may_ask_the_batcher_in_the_middle_of_each_step(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ask: Any
) -> None:
    """The thread that takes the step holds the lock, and would wait for itself. No item is lost."""
    amid = Amid(monkeypatch, ask)
    fn, gate = new_function(flavour, **options)
    amid.begin(fn)
    use(flavour, fn, gate)
    assert len(amid.places) > 40
    check_sums(fn)
    flavour.close(fn)


def test_garbage_may_be_collected_in_the_middle_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is when the collector comes while a thread holds the lock; results report as they end."""

    def collect(fn: Any) -> None:
        answer: Any = Answer(lambda: fn)
        answer.myself = answer
        del answer
        gc.collect(0)

    amid = Amid(monkeypatch, collect)
    fn, gate = new_function(Flavour())
    amid.begin(fn)
    use(Flavour(), fn, gate)
    check_sums(fn)
    fn.shutdown()


@pytest.mark.parametrize("size", [None, 60], ids=["unbounded", "bounded"])
def test_a_finalizer_may_submit_in_the_middle_of_each_step(
    monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    """Each future has its answer, also where calls are admitted with the lock."""
    futures: list[Any] = []

    def submit(fn: Any) -> None:
        with contextlib.suppress(RuntimeError):  # in the worker's own thread, which takes no call
            futures.append(fn.submit("of a finalizer"))

    amid = Amid(monkeypatch, submit)
    fn = batched.dynamically(list, timeout_ms=0, max_queue_size=size)
    amid.begin(fn)
    assert [fn(item) for item in range(20)] == [*range(20)]
    assert fn.stats is not None
    assert len(futures) > 3
    assert {future.result(PATIENCE_S) for future in futures} == {"of a finalizer"}
    check_sums(fn)
    fn.shutdown()


def test_a_call_of_a_finalizer_for_which_there_is_no_room_is_refused_by_its_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether there is room is known after the step; a call that is cancelled before that never comes."""
    futures: list[Any] = []

    def submit(fn: Any) -> None:
        futures.append(fn.submit("of a finalizer"))
        assert fn.submit("cancelled").cancel()

    amid = Amid(monkeypatch, submit)
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1)
    running = fn.submit("runs")
    gate.wait_for_batch()
    waiting = fn.submit("waits")
    amid.begin(fn)
    assert fn.stats.queue_size == 1
    amid.end()
    assert futures
    for future in futures:
        assert isinstance(future.exception(PATIENCE_S), QueueFullError)
    gate.open()
    assert (running.result(PATIENCE_S), waiting.result(PATIENCE_S)) == ("runs", "waits")
    assert fn.stats.total_rejected == len(futures)
    fn.shutdown()
    assert gate.batches == [["runs"], ["waits"]]


def test_a_finalizer_that_would_wait_for_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that blocks, and the end that is waited for, cannot be in the middle of a step."""
    told: list[str] = []

    def ask(fn: Any) -> None:
        for each in (lambda: fn("blocks"), fn.shutdown):
            with pytest.raises(RuntimeError) as raised:
                each()
            told.append(str(raised.value))

    amid = Amid(monkeypatch, ask)
    fn = batched.dynamically(list, timeout_ms=0, name="f")
    amid.begin(fn)
    assert fn.stats.total_accepted == 0
    amid_step = "a finalizer or a signal handler that interrupted its own work"
    assert set(told) == {
        f"f was called by {amid_step}, where it would wait for itself; use submit",
        f"f cannot wait for its shutdown in {amid_step}; use shutdown(wait=False)",
    }
    assert fn(1) == 1
    fn.shutdown()


def test_a_finalizer_may_end_the_batcher_in_the_middle_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is run or cancelled after the step, and the worker ends."""
    for cancels in (False, True):
        with monkeypatch.context() as patched:
            amid = Amid(patched, lambda fn, cancels=cancels: fn.shutdown(wait=False, cancel_futures=cancels))
            gate = Gate(shut=True)
            fn = batched.dynamically(gate, timeout_ms=0, name="ended")
            first = fn.submit(1)
            gate.wait_for_batch()
            second = fn.submit(2)
            amid.begin(fn)
            assert fn.stats.running_items == 1
            gate.open()
            assert first.result(PATIENCE_S) == 1
            if cancels:
                assert second.cancelled()
            else:
                assert second.result(PATIENCE_S) == 2
            until(lambda: not workers("ended"))


class Held:
    """Notes, as it ends, whether the thread holds the lock of the batcher."""

    def __init__(self, fn: Any, held: list[bool]) -> None:
        self.lock = driver_of(fn).lock
        self.held = held

    def __del__(self) -> None:
        self.held.append(self.lock.is_mine())


def test_an_error_that_an_earlier_one_replaces_is_forgotten_without_the_lock(flavour: Flavour) -> None:
    """A list that is sorted may fail first with what is not its first error."""
    held: list[bool] = []

    def failing(items: list[int]) -> list[Any]:
        errors = [ValueError(item) for item in items]
        for error in errors:
            error.held = Held(fn, held)  # type: ignore[attr-defined]
        return errors

    fn = flavour.decorate(failing, batch_size=1, timeout_ms=0, length=int)
    with pytest.raises(ValueError, match=r"^1\b"):
        flavour.call(fn, [1, 2, 3])
    until(lambda: gc.collect() is not None and len(held) == 3)
    assert not any(held)
