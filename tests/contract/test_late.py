"""Items of which the deadline passes while they run: `total_late` counts each of them once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.refilled import Refilled
from tests.kit.stats import adds_up
from tests.kit.steps import Steps, endless

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "no option": dict,
    "cache": lambda: {"cache": {}},
    "group_by": lambda: {"group_by": lambda number: number % 3},
    "prepare": lambda: {"prepare": list},
}


def ask(flavour: Flavour, view: Any, item: Any) -> Any:
    """Return the answer; a future of `submit` that runs is never late, so its caller blocks instead."""
    return flavour.call(view, item) if flavour.in_tasks else view(item)


def be_late(flavour: Flavour, view: Any, gate: Gate, item: Any) -> int:
    """Have a call be late in its batch, which the gate holds; return how many were late before.

    On a busy machine a call may be late before it is in a batch: then another one comes.
    """
    batches, calls = len(gate.batches), 0
    while len(gate.batches) == batches:
        with pytest.raises(TimeoutError):
            ask(flavour, view, item)
        calls += 1
    return calls - 1


def ended(fn: Any) -> Any:
    """Return the figures once nothing waits or runs."""
    until(lambda: not (fn.stats.queue_size or fn.stats.running_items))
    stats = fn.stats
    assert adds_up(stats)
    return stats


@pytest.mark.parametrize("option", OPTIONS)
def test_an_item_that_is_late_as_it_runs_is_counted(flavour: Flavour, option: str) -> None:
    """It is processed, and neither expired nor failed; one that is in time is not late."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, **OPTIONS[option]())
    expired = be_late(flavour, fn.options(deadline_ms=50), gate, 1)
    gate.open()
    stats = ended(fn)
    assert (stats.total_processed, stats.total_late, stats.total_failed) == (1, 1, 0)
    assert stats.total_expired == expired
    assert flavour.call(fn.options(deadline_ms=60_000), 2) == 2
    assert ended(fn).total_late == 1


@pytest.mark.parametrize("option", ["no option", "group_by"])
def test_of_a_list_the_items_that_run_at_the_deadline_are_late(flavour: Flavour, option: str) -> None:
    """Those before them are in time, and those behind them expired. A future is late too, for these."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, **OPTIONS[option]())
    before = fn.stats
    while len(gate.batches) < 2:  # on a busy machine it may be late before its second batch
        gate.batches.clear()
        gate.shut_again()
        gate.let_through()
        before = fn.stats
        late = flavour.start(fn.options(deadline_ms=200), list(range(6)))
        with pytest.raises(TimeoutError):
            late.result(PATIENCE_S)
    gate.open()
    stats = ended(fn)
    figures = ("total_processed", "total_late", "total_expired")
    assert [getattr(stats, each) - getattr(before, each) for each in figures] == [4, 2, 2]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_item_that_is_late_in_a_batch_that_fails_counts_once(flavour: Flavour, option: str) -> None:
    """It does not run again; the others do, in halves, and are in time."""

    def answer(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError("several")
        return items

    gate = Gate(answer, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=0, **OPTIONS[option]())
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    others = [flavour.start(fn, 3), flavour.start(fn, 6)]
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, flavour, fn.options(deadline_ms=100), 9)
        until(lambda: fn.stats.total_accepted == 4)
        gate.let_through()
        gate.wait_for_batch()
        with pytest.raises(TimeoutError):
            late.result(PATIENCE_S)
    ran = len(gate.batches[1]) == 3  # else it was late before it ran, on a busy machine
    gate.open()
    assert [each.result(PATIENCE_S) for each in (first, *others)] == [0, 3, 6]
    stats = ended(fn)
    assert (stats.total_late, stats.total_expired) == ((1, 0) if ran else (0, 1))


def test_an_item_that_another_caller_still_waits_for_is_not_late(flavour: Flavour) -> None:
    """Of two callers of a cache, one is patient."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={})
    patient = flavour.start(fn, "a")
    gate.wait_for_batch()
    with pytest.raises(TimeoutError):
        ask(flavour, fn.options(deadline_ms=30), "a")
    gate.open()
    assert patient.result(PATIENCE_S) == "a"
    stats = ended(fn)
    assert (stats.total_processed, stats.total_cached, stats.total_late) == (1, 1, 0)


def test_an_item_that_two_late_callers_have_waited_for_is_late_once(flavour: Flavour) -> None:
    """It ran once, so it counts once."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={})
    call = partial(ask, flavour, fn.options(deadline_ms=200))
    with ThreadPoolExecutor(2) as pool:
        callers: list[Future[Any]] = []
        while not gate.batches:  # on a busy machine both may be late before it runs
            callers = [pool.submit(call, "a"), pool.submit(call, "a")]
            for each in callers:
                assert isinstance(each.exception(PATIENCE_S), TimeoutError)
    gate.open()
    stats = ended(fn)
    assert (stats.total_processed, stats.total_late) == (1, 1)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_stream_that_is_late_as_it_runs_is_counted(streaming: Flavour, continuous: bool) -> None:
    """However many pieces it has had, and whether or not its batch is refilled."""
    rows = Refilled(lambda item, step: (item, step)) if continuous else Steps(endless)
    fn = streaming.decorate(rows, continuous=continuous, batch_size=2, timeout_ms=0, max_pieces=1_000_000_000)
    pieces: list[Any] = []
    while not pieces:  # on a busy machine it may be late before its first piece
        with pytest.raises(TimeoutError):
            pieces.extend(streaming.stream(fn.options(deadline_ms=50), "late"))
    stats = ended(fn)
    assert stats.total_late == stats.total_processed > 0
