"""Batches that were never queued: they come first, and the batcher knows nothing of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batched._core.call import Call
from batched._core.halves import Aside
from batched._core.mending import close
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._drivers.warm_up import Round, WarmUp
from tests.kit.batcher_rules import COLLATOR, echo
from tests.kit.calls import single
from tests.kit.gate import PATIENCE_S


def aside_of(*items: Any) -> tuple[Aside, Call]:
    """Return a batch of one call that was never queued."""
    call = Call().begin(echo, [*items], len(items), True, 0.0)
    return Aside([(call, 0, len(items))], len(items), None, None), call


def test_it_runs_before_the_queue_and_counts_nowhere() -> None:
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    driver.push(single())
    aside, call = aside_of(1, 2)
    assert not driver.batcher.has_asides
    driver.batcher.run_aside([aside])
    assert driver.batcher.has_asides
    before = driver.stats(0.0)
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0) is aside
    assert driver.batcher.running == {}
    assert driver.stats(0.0) == before
    assert driver.run(aside, 1.0) == [call]
    assert call.results == [1, 2]
    assert driver.stats(0.0) == before
    assert driver.delay(1.0) == 0.0
    assert driver.pop(1.0).size == 1


def test_its_error_is_that_of_its_call_and_it_runs_no_second_time() -> None:
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    for error in (ValueError(), MemoryError()):
        aside, call = aside_of(1, 2)
        driver.batcher.first.append(aside)
        assert driver.delay(0.0) == 0.0
        assert driver.fail(driver.pop(0.0), error, 1.0) == [call]
        assert call.error is error
        assert not driver.batcher.first
    assert driver.stats(0.0).total_divided == driver.stats(0.0).total_failed == 0
    assert driver.stats(0.0).fits_memory is None


def test_where_no_worker_can_run_it_its_call_has_the_error() -> None:
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    aside, call = aside_of(1)
    driver.batcher.first.append(aside)
    error = RuntimeError("no thread")
    close(driver.batcher, error)
    assert driver.take_answered() == [call]
    assert call.error is error
    assert call.inputs is None
    assert driver.stats(0.0).total_cancelled == 0
    assert driver.delay(0.0) is None
    assert not driver.batcher.has_calls


def in_a_thread(work: Any) -> Any:
    """Return what `work` returns in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE_S)


def test_each_worker_takes_one_of_a_round() -> None:
    """One that has had its own leaves the others to those that live."""
    its_round = Round(lambda workers: workers < 2)
    assert its_round.may_run()
    its_round.begins()
    assert not its_round.may_run()

    def other() -> bool:
        may = its_round.may_run()
        its_round.begins()
        return may

    assert in_a_thread(other)
    assert its_round.may_run()  # no third worker lives


def test_a_batch_of_a_warm_up_notes_the_worker_that_runs_it() -> None:
    call = Call().begin(echo, [1, 2], 2, True, 0.0)
    batch = WarmUp([(call, 0, 2)], Round(lambda _: True))
    assert batch.may_start()
    assert batch.run(COLLATOR) == [1, 2]
    assert not batch.may_start()
    assert in_a_thread(batch.may_start)
    assert WarmUp([(call, 0, 2)]).may_start()
    assert batch.prune() == []


def test_calls_that_are_due_have_a_turn_between_two_warm_ups() -> None:
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    asides = [aside_of(number)[0] for number in range(2)]
    driver.batcher.first.extend(asides)
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0) is asides[0]
    driver.push(single())
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0).size == 1
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0) is asides[1]


def test_a_warm_up_does_not_wait_for_calls_that_wait_for_others() -> None:
    driver = ManualDriver(Options(timeout_ms=1000, adaptive=False), Queue, COLLATOR)
    asides = [aside_of(number)[0] for number in range(2)]
    driver.batcher.first.extend(asides)
    driver.push(single())
    for aside in asides:
        assert driver.delay(0.0) == 0.0
        assert driver.pop(0.0) is aside


def test_a_warm_up_that_is_larger_than_batches_are_by_now_runs_as_it_is() -> None:
    """In parts it would show the function other sizes, and be counted."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4), Queue, COLLATOR)
    aside, call = aside_of(1, 2, 3, 4)
    driver.batcher.run_aside([aside])
    driver.batcher.configure(Options(timeout_ms=0, batch_size=2))
    before = driver.stats(0.0)
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0) is aside
    assert driver.run(aside, 1.0) == [call]
    assert call.results == [1, 2, 3, 4]
    assert driver.stats(0.0) == before
