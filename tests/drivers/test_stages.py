"""The threads of stages: when they start and end, which runs what, and what a fault of one leaves."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import batched
from batched._drivers.fork_and_exit import NO_THREAD
from batched._features.overlap import Overlap
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of
from tests.kit.script import run_script
from tests.kit.threads import until_asleep, workers


def identity(items: Any) -> Any:
    """Return what it gets."""
    return items


def of_stages(name: str) -> set[str]:
    """Return the names of the threads of a batcher, of its worker and of stages."""
    return {
        each.name
        for each in threading.enumerate()
        if each.name == f"batched: {name}" or each.name.startswith(f"batched: {name}, ")
    }


def staged(function: Callable[..., Any] = identity, **options: Any) -> Any:
    """Return a function with stages, of which it is known how long they take."""
    fn = batched.dynamically(
        function, **{"prepare": identity, "finish": identity, "timeout_ms": 0, "batch_size": 2, **options}
    )
    for _ in range(8):
        fn(0)
    return fn


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_a_lone_caller_has_one_thread_and_others_start_with_company() -> None:
    gate = Gate(identity)
    fn = staged(gate, name="alone")
    assert of_stages("alone") == {"batched: alone"}
    gate.close()
    futures = [fn.submit([turn, turn]) for turn in range(4)]
    until(lambda: "batched: alone, prepare" in of_stages("alone"))
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [[turn, turn] for turn in range(4)]
    fn.shutdown()
    assert of_stages("alone") == set()


def test_the_function_runs_in_one_thread() -> None:
    idents: dict[str, set[int]] = {"prepare": set(), "function": set(), "finish": set()}

    def note(stage: str) -> Callable[[Any], Any]:
        def run(items: Any) -> Any:
            idents[stage].add(threading.get_ident())
            return items

        return run

    fn = staged(note("function"), prepare=note("prepare"), finish=note("finish"))
    futures = [fn.submit([turn, turn]) for turn in range(200)]
    assert [future.result(PATIENCE_S) for future in futures] == [[turn, turn] for turn in range(200)]
    assert len(idents["function"]) == 1
    assert all(idents["function"] <= idents[stage] and len(idents[stage]) <= 2 for stage in idents)
    fn.shutdown()


@pytest.mark.parametrize("error", NO_THREAD)
def test_too_many_threads_for_the_process_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The worker does all three stages; so it does if there is no memory for another thread."""
    fn = staged(name="few stages")
    start = threading.Thread.start

    def none(thread: threading.Thread) -> None:
        if thread.name.startswith("batched: few stages, "):
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none)
    futures = [fn.submit([turn, turn]) for turn in range(50)]
    assert [future.result(PATIENCE_S) for future in futures] == [[turn, turn] for turn in range(50)]
    assert of_stages("few stages") == {"batched: few stages"}
    fn.shutdown()


@pytest.mark.parametrize("stage", ["prepare", "function", "finish"])
def test_a_worker_that_ends_runs_what_failed_in_its_last_batch_again(stage: str) -> None:
    def fails(items: list[int]) -> list[int]:
        if 5 in items:
            raise KeyError(5)
        return items

    functions: dict[str, Any] = {"prepare": identity, "finish": identity, "function": identity, stage: fails}
    gate = Gate(functions.pop("function"), shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=60_000, **functions)
    if stage == "function":
        gate.answer = fails
    futures = [fn.submit(item) for item in range(8)]
    if stage == "prepare":
        gate.open()
    else:
        gate.wait_for_batch()
    fn.shutdown(wait=False)
    gate.open()
    fn.shutdown()
    for item, future in enumerate(futures):
        if item == 5:
            assert isinstance(future.exception(PATIENCE_S), KeyError)
        else:
            assert future.result(PATIENCE_S) == item


def test_a_worker_that_ends_runs_again_what_fails_in_another_thread_meanwhile() -> None:
    """Its last look has found nothing, as that batch was still being finished."""
    go_on = threading.Event()
    finished: list[list[int]] = []

    def function(items: list[int]) -> list[int]:
        if items == [3]:
            raise KeyError(3)
        return items

    def finish(items: list[int]) -> list[int]:
        finished.append(items)
        if items == [1, 2]:
            assert go_on.wait(PATIENCE_S)
            raise KeyError(1, 2)
        return items

    gate, prepared = Gate(function), Gate(identity)
    fn = staged(gate, prepare=prepared, finish=finish, adaptive=False)
    gate.close()
    fn.submit([0, 0])
    fn.submit([0, 1])
    until(lambda: prepared.batches[-1] == [0, 1])  # so it is ahead
    futures = [fn.submit(item) for item in (1, 2, 3)]
    fn.shutdown(wait=False)
    gate.open()
    assert isinstance(futures[2].exception(PATIENCE_S), KeyError)
    until(lambda: "thread.join()" in fn.worker_stack())
    go_on.set()
    assert [future.result(PATIENCE_S) for future in futures[:2]] == [1, 2]
    assert finished[-3:] == [[1, 2], [1], [2]]
    fn.shutdown()


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_when_the_function_is_collected_all_threads_end() -> None:
    fn = staged(name="collected")
    for future in [fn.submit([turn, turn]) for turn in range(50)]:
        future.result(PATIENCE_S)
    reference = weakref.ref(fn)
    del fn
    until(lambda: gc.collect() is not None and reference() is None)
    until(lambda: of_stages("collected") == set())


def test_nothing_of_a_batch_is_kept_once_it_is_answered() -> None:
    class Item:
        """It can be seen whether it is kept."""

    fn = staged(lambda items: [1] * len(items), prepare=tuple, finish=list)
    items = [Item() for _ in range(40)]
    futures = [fn.submit(item) for item in items]
    assert [future.result(PATIENCE_S) for future in futures] == [1] * 40
    references = [weakref.ref(item) for item in items]
    until_asleep(fn)
    del items, futures
    until(lambda: gc.collect() is not None and not any(reference() for reference in references))
    fn.shutdown()


@pytest.mark.parametrize("step", ["_look_ahead", "_finish_other", "_following", "_hand_over", "_take_ahead"])
def test_a_fault_of_this_library_in_any_thread_answers_each_call_once(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """And the next calls work."""
    fn = staged()
    dispatcher = driver_of(fn).dispatcher
    plain = getattr(type(dispatcher), step)
    faults = iter([True] * 3)

    def faulty(*args: Any) -> Any:
        if next(faults, False):
            raise ArithmeticError(step)
        return plain(*args)

    monkeypatch.setattr(type(dispatcher), step, lambda self, *args: faulty(self, *args))
    if step in {"_look_ahead", "_finish_other"}:
        stage = "_preparer" if step == "_look_ahead" else "_finisher"
        thread = getattr(dispatcher, stage)
        monkeypatch.setattr(thread, "_step", lambda: faulty(dispatcher))
    futures = [fn.submit([turn, turn]) for turn in range(60)]
    for turn, future in enumerate(futures):
        error = future.exception(PATIENCE_S)
        assert error is None or isinstance(error, ArithmeticError)
        assert error is not None or future.result() == [turn, turn]
    assert fn([1, 2]) == [1, 2]
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled
    fn.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("pool", ["None", "batched.Workers(2)"])
def test_a_fork_starts_afresh_while_batches_are_in_stages(pool: str) -> None:
    assert (
        run_script(
            """
            gate = threading.Event()
            inside = threading.Semaphore(0)
            warm = [True]

            def held(items):
                inside.release()
                warm or gate.wait(20)
                return items

            fn = batched.dynamically(
                held, prepare=list, finish=list, batch_size=2, timeout_ms=0, workers=POOL
            )
            for _ in range(8):
                fn([0, 0])
            warm.clear()
            futures = [fn.submit([item, item]) for item in range(5)]
            child = os.fork()
            if not child:
                gate.set()
                status = fn([1, 2, 3]) != [1, 2, 3] or fn.stats.total_accepted != 3
                os._exit(int(status))
            assert os.waitpid(child, 0)[1] == 0
            gate.set()
            print([future.result(20)[0] for future in futures])
            """.replace("POOL", pool)
        )
        == "[0, 1, 2, 3, 4]\n"
    )


@pytest.mark.parametrize("pool", ["None", "batched.Workers(2)"])
def test_the_process_ends_while_batches_are_in_stages(pool: str) -> None:
    assert (
        run_script(
            """
            fn = batched.dynamically(
                lambda items: [time.sleep(0.005), items][1],
                prepare=list, finish=list, batch_size=2, workers=POOL,
            )
            for _ in range(4):
                fn([0, 0])
            futures = [fn.submit([item, item]) for item in range(100)]
            print("ends")
            """.replace("POOL", pool)
        )
        == "ends\n"
    )


@pytest.mark.parametrize("pays", [True, False])
def test_a_batch_that_is_prepared_is_prepared_anew_with_a_call_that_comes_if_that_pays(
    monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    """Else the call waits for the next batch."""
    prepared: list[list[int]] = []
    done = threading.Semaphore(0)

    def prepare(items: list[int]) -> list[int]:
        prepared.append(items)
        done.release()
        return items

    gate = Gate(identity)
    fn = staged(gate, prepare=prepare, batch_size=4, length=None, adaptive=False)
    monkeypatch.setattr(Overlap, "gives_up", lambda self, batch, more, now: pays)
    monkeypatch.setattr(Overlap, "look_at", lambda self, now: now if self.river.queue.items else None)
    gate.close()
    first = fn.submit([1, 1, 1, 1])
    gate.wait_for_batch()
    prepared.clear()
    while done.acquire(blocking=False):
        pass
    second = fn.submit([2, 2])
    assert done.acquire(timeout=PATIENCE_S)
    third = fn.submit(3)
    if pays:
        assert done.acquire(timeout=PATIENCE_S)
    gate.open()
    answers = [future.result(PATIENCE_S) for future in (first, second, third)]
    assert answers == [[1] * 4, [2, 2], 3]
    assert prepared == ([[2, 2], [2, 2, 3]] if pays else [[2, 2], [3]])
    assert gate.batches[-1] == ([2, 2, 3] if pays else [3])
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed
    fn.shutdown()


def test_a_worker_stack_has_all_its_threads() -> None:
    gate = Gate(identity)
    fn = staged(gate)
    gate.close()
    futures = [fn.submit([turn, turn]) for turn in range(3)]
    until(lambda: "_StageThread" in fn.worker_stack() or "in _run" in fn.worker_stack())
    gate.open()
    for future in futures:
        future.result(PATIENCE_S)
    fn.shutdown()


def test_workers_finds_the_worker_alone() -> None:
    fn = staged(name="one of three")
    assert len(workers("one of three")) == 1
    fn.shutdown()
