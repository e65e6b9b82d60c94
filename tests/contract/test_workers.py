"""`workers`: threads with a name and a state, which several functions share."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import batched
from batched._core.shared_turns import SharedTurns
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.pooled import Load, needs_workers, share, worker_that_runs


@pytest.fixture(autouse=True)
def _needs_workers(flavour: Flavour) -> None:
    needs_workers(flavour)


def test_a_function_finds_its_worker(flavour: Flavour) -> None:
    """Its index, its name, and the state that was made for it, once, before its first batch."""
    load = Load()
    with batched.Workers(["cuda:7"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, worker_that_runs)
        assert not load.names
        assert [flavour.call(fn, item) for item in range(3)] == [(0, "cuda:7", "cuda:7, load 1")] * 3
        assert load.names == ["cuda:7"]


def test_arrays_find_it_too(flavour: Flavour) -> None:
    """As features are arrays, so is what tells of it."""

    def states(features: dict[str, Any]) -> Any:
        return features["x"] + batched.current_worker().state

    with batched.Workers(1, initializer=lambda name: 5 + int(name)) as workers:
        fn = flavour.decorate_arrays(states, workers=workers)
        assert flavour.call(fn, {"x": np.array([[1, 2]])}).tolist() == [[6, 7]]


def test_functions_share_workers_and_keep_their_own_stats(flavour: Flavour) -> None:
    """Never do more batches run at once than there are workers."""
    at_once, most = threading.Semaphore(2), []

    def run(items: list[int]) -> list[int]:
        assert at_once.acquire(blocking=False), "three batches at once"
        try:
            most.append(batched.current_worker().index)
            return items
        finally:
            at_once.release()

    with batched.Workers(2) as workers:
        functions = share(flavour, workers, *[run] * 3)
        futures = [flavour.start(fn, item) for item in range(20) for fn in functions]
        answers = [future.result(PATIENCE_S) for future in futures]
        assert answers == [item for item in range(20) for _ in functions]
        assert [fn.stats.total_processed for fn in functions] == [20, 20, 20]
        expected = {f"function {number}": 20 for number in range(3)}
        # A worker counts a batch once its callers have been woken.
        until(lambda: {name: share.items for name, share in workers.stats.functions.items()} == expected)
        assert sum(share.batches for share in workers.stats.functions.values()) == len(most)


def test_explain_says_how_busy_the_workers_are(flavour: Flavour) -> None:
    """And with which functions."""
    with batched.Workers(["a", "b"], name="gpus") as workers:
        fn, other = share(flavour, workers, list, list)
        assert "run on the workers 'gpus' (a, b), which were busy 0% of the time." in fn.explain()
        flavour.call(fn, 1)
        flavour.call(other, 1)
        until(lambda: len(workers.stats.functions) == 2)
        told = fn.explain().splitlines()[-1]
        assert "% with function 0, " in told
        assert told.endswith("% with function 1.")


def test_a_worker_whose_state_is_being_made_says_so(flavour: Flavour) -> None:
    """Else calls that wait for a model that never comes would wait without a word."""
    gate = Gate(lambda name: name, shut=True)
    with batched.Workers(["gpu"], initializer=gate, name="gpus") as gpus:
        (fn,) = share(flavour, gpus, list, batch_size=8)
        assert gpus.stats.workers[0].starting_s is None
        waiting = flavour.start(fn, 1)
        gate.wait_for_batch()
        (worker,) = gpus.stats.workers
        assert (worker.is_ready, worker.error) == (False, None)
        assert worker.starting_s is not None
        assert worker.starting_s >= 0
        assert "starting for " in str(gpus.stats)
        assert "The initializer has been making the state of 'gpu' for " in fn.explain()
        gate.open()
        assert waiting.result(PATIENCE_S) == 1
        assert gpus.stats.workers[0].starting_s is None
        assert "initializer" not in fn.explain()


def test_they_take_turns_the_oldest_call_first(flavour: Flavour) -> None:
    """A function with a backlog has not the worker for itself."""
    gate = Gate(shut=True)
    with batched.Workers(1) as workers:
        busy, other = share(flavour, workers, gate, gate, batch_size=1)
        futures = [flavour.start(busy, 0)]
        gate.wait_for_batch()
        futures += [flavour.start(busy, item) for item in range(1, 5)]
        futures += [flavour.start(other, item) for item in range(10, 13)]
        gate.open()
        assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3, 4, 10, 11, 12]
    order = [batch[0] for batch in gate.batches]
    assert order == [0, 1, 10, 2, 11, 3, 12, 4]


@pytest.mark.parametrize("options", [{}, {"group_by": lambda item: item % 3}])
def test_small_calls_go_ahead_of_large_ones_of_other_functions(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """A list of one function holds up no single call of another, also where its items have several keys."""
    gate = Gate(shut=True)
    with batched.Workers(1) as workers:
        lists, singles = share(flavour, workers, gate, gate, small_batch_threshold=1, **options)
        first = flavour.start(lists, [*range(40)])
        gate.wait_for_batch()
        single = flavour.start(singles, 99)
        gate.let_through()
        gate.wait_for_batch()
        assert gate.batches[1] == [99]
        gate.open()
        assert single.result(PATIENCE_S) == 99
        assert first.result(PATIENCE_S) == [*range(40)]


def test_a_weight_gives_a_function_more_turns(flavour: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the weight, about three times the batches, where they take as long."""
    ended = SharedTurns.ended
    monkeypatch.setattr(
        SharedTurns, "ended", lambda turns, account, seconds: ended(turns, account, seconds and 1.0)
    )
    gate = Gate(shut=True)
    with batched.Workers(1) as workers:
        (heavy,) = share(flavour, workers.weighted(3), gate, batch_size=1)
        light = flavour.decorate(gate, name="light", batch_size=1, timeout_ms=0, workers=workers)
        futures = [flavour.start(light, 0)]
        gate.wait_for_batch()
        futures += [flavour.start(light, 0) for _ in range(30)]
        futures += [flavour.start(heavy, 1) for _ in range(30)]
        ran: list[int] = []
        for _ in range(25):
            gate.let_through()
            gate.wait_for_batch()
        ran = [batch[0] for batch in gate.batches[1:25]]
        gate.open()
        for future in futures:
            future.result(PATIENCE_S)
    assert repr(workers.weighted(3)).endswith(".weighted(3)")
    assert 17 <= ran.count(1) <= 19


@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_the_initializer_is_that_of_the_calls_and_the_next_call_tries_again(
    flavour: Flavour, is_async: bool
) -> None:
    """Each of those that wait gets it, with a note of what was tried."""
    load = Load(failures=1)

    async def load_on_loop(name: str) -> str:
        return load(name)

    with batched.Workers(["gpu"], initializer=load_on_loop if is_async else load, name="gpus") as gpus:
        fn, other = share(flavour, gpus, worker_that_runs, worker_that_runs)
        with pytest.raises(OSError, match="no memory on gpu") as raised:
            flavour.call(fn, 1)
        assert any("('gpu')" in note and "'gpus'" in note for note in raised.value.__notes__)
        assert not gpus.stats.workers[0].is_ready
        assert "no memory" in str(gpus.stats.workers[0].error)
        assert flavour.call(other, 1) == (0, "gpu", "gpu, load 2")
        assert flavour.call(fn, 1) == (0, "gpu", "gpu, load 2")
        assert gpus.stats.workers[0].error is None


def test_an_error_that_each_try_raises_anew_has_the_note_once(flavour: Flavour) -> None:
    """Such as one that a module keeps since its import has failed: it would grow with each call."""
    kept = OSError("no memory")

    def load(name: str) -> None:
        raise kept

    with batched.Workers(["gpu"], initializer=load, name="gpus") as gpus:
        (fn,) = share(flavour, gpus, worker_that_runs)
        for _ in range(3):
            with pytest.raises(OSError, match="no memory") as raised:
                flavour.call(fn, 1)
            assert len(raised.value.__notes__) == 1


def test_a_fatal_error_of_the_initializer_is_not_said_to_be_one_of_the_batch_function(
    flavour: Flavour,
) -> None:
    """A task gets a `BatchError` in the place of one that would end its event loop: what it says holds."""

    def load(name: str) -> None:
        raise SystemExit(3)

    with batched.Workers(["gpu"], initializer=load, name="gpus") as gpus:
        (fn,) = share(flavour, gpus, worker_that_runs)
        with pytest.raises((SystemExit, batched.BatchError)) as raised:
            flavour.call(fn, 1)
    error = raised.value
    assert "batch function" not in str(error)
    fatal = error.__cause__ if isinstance(error, batched.BatchError) else error
    assert isinstance(fatal, SystemExit)
    assert any("the initializer of the workers 'gpus'" in note for note in fatal.__notes__)


def test_a_worker_that_cannot_start_leaves_its_calls_to_the_others(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log."""

    def load(name: str) -> str:
        if name == "bad":
            raise OSError("no such device")
        return name

    gate = Gate(lambda items: [batched.current_worker().state for _ in items], shut=True)
    with (
        caplog.at_level(logging.ERROR, "batched"),
        batched.Workers(["good", "bad"], initializer=load) as gpus,
    ):
        (fn,) = share(flavour, gpus, gate, batch_size=1)
        futures = [flavour.start(fn, item) for item in range(3)]
        gate.wait_for_batch()
        until(lambda: gpus.stats.workers[1].error is not None)
        gate.open()
        assert [future.result(PATIENCE_S) for future in futures] == ["good"] * 3
        until(lambda: "could not start the worker 'bad'" in caplog.text)


def test_a_first_worker_that_cannot_start_leaves_its_calls_to_one_that_has_yet_to(flavour: Flavour) -> None:
    """No call fails as long as there is a worker that can start; then each has been tried."""
    broken = {"first", "second"}
    tried: list[str] = []

    def load(name: str) -> str:
        tried.append(name)
        if name in broken:
            raise OSError(f"no device {name}")
        return name

    with batched.Workers(["first", "second", "third"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, worker_that_runs)
        assert flavour.call(fn, 1) == (2, "third", "third")
        assert tried == ["first", "second", "third"]
    tried.clear()
    with batched.Workers(["first", "second"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, worker_that_runs)
        for _ in range(2):
            with pytest.raises(OSError, match="no device"):
                flavour.call(fn, 1)
        assert set(tried) == {"first", "second"}  # in how many tries is chance
        broken.clear()
        assert flavour.call(fn, 1)[2] in {"first", "second"}


def test_a_broken_worker_is_made_anew_and_its_batch_runs_once_more(flavour: Flavour) -> None:
    """No caller notices."""
    load = Load()
    broken: list[str] = []

    def run(items: list[int]) -> list[Any]:
        state = batched.current_worker().state
        if state.endswith("load 1"):
            broken.append(state)
            raise batched.RestartWorker from RuntimeError("device lost")
        return [state for _ in items]

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run)
        assert flavour.call(fn, [1, 2, 3]) == ["gpu, load 2"] * 3
        assert broken == ["gpu, load 1"]
        assert gpus.stats.workers[0].restarts == 1
        assert fn.stats.total_divided == 0  # it was not to find an item that fails
        assert flavour.call(fn, 1) == "gpu, load 2"


def test_without_isolation_the_callers_of_a_broken_worker_get_the_cause(flavour: Flavour) -> None:
    """It is not run again, but the state is made anew."""
    load = Load()

    def run(items: list[int]) -> list[Any]:
        if len(load.names) == 1:
            raise batched.RestartWorker from RuntimeError("device lost")
        return [batched.current_worker().state for _ in items]

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run, isolate_errors=False)
        with pytest.raises(RuntimeError, match="device lost"):
            flavour.call(fn, 1)
        assert flavour.call(fn, 1) == "gpu, load 2"


@pytest.mark.parametrize("kind", [ValueError, ConnectionError])
def test_an_item_that_breaks_each_worker_fails_alone(flavour: Flavour, kind: type[Exception]) -> None:
    """With the cause that the function has named; its neighbours have their answers.

    Also if the cause is a lost connection: the function says that it was the worker's, which is made anew.
    """
    load = Load()

    def run(items: list[int]) -> list[Any]:
        if 13 in items:
            raise batched.RestartWorker from kind("13 kills the device")
        return items

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run, batch_size=8)
        blocker = Gate(shut=True)
        holds = flavour.decorate(blocker, name="holds", timeout_ms=0, workers=gpus)
        held = flavour.start(holds, 0)
        blocker.wait_for_batch()
        futures = [flavour.start(fn, item) for item in (1, 2, 13, 4)]
        blocker.open()
        held.result(PATIENCE_S)
        with pytest.raises(kind, match="13 kills the device"):
            futures[2].result(PATIENCE_S)
        assert [futures[at].result(PATIENCE_S) for at in (0, 1, 3)] == [1, 2, 4]


def test_items_of_which_only_one_fits_are_answered_though_each_larger_run_breaks_its_worker(
    flavour: Flavour,
) -> None:
    """The error is no item's: the other half of a batch that did not fit is divided before it runs."""
    load = Load()

    def run(items: list[int]) -> list[Any]:
        if len(items) > 1:
            raise batched.RestartWorker from MemoryError
        return items

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run, batch_size=32)
        blocker = Gate(shut=True)
        holds = flavour.decorate(blocker, name="holds", timeout_ms=0, workers=gpus)
        for _ in range(2):
            blocker.close()
            held = flavour.start(holds, 0)
            blocker.wait_for_batch()
            futures = [flavour.start(fn, item) for item in range(32)]
            blocker.open()
            held.result(PATIENCE_S)
            assert [future.result(PATIENCE_S) for future in futures] == [*range(32)]
        assert len(load.names) == 6  # after the runs of 32, 16, 8, 4 and 2
        assert fn.stats.batch_error is None


@pytest.mark.parametrize("kind", [ValueError, ConnectionError, MemoryError])
def test_a_batch_that_breaks_each_worker_does_not_restart_it_for_each_item(
    flavour: Flavour, kind: type[Exception]
) -> None:
    """To make a state may take long, and no other function has the worker meanwhile."""
    load = Load()

    def run(items: list[int]) -> list[Any]:
        raise batched.RestartWorker from kind("lost")

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run, batch_size=64)
        gate = Gate(shut=True)
        holds = flavour.decorate(gate, name="holds", timeout_ms=0, workers=gpus)
        held = flavour.start(holds, 0)
        gate.wait_for_batch()
        futures = [flavour.start(fn, item) for item in range(32)]
        gate.open()
        held.result(PATIENCE_S)
        for future in futures:
            with pytest.raises(kind, match="lost"):
                future.result(PATIENCE_S)
        flavour.close(fn)
        assert len(load.names) <= 3 + 5 + 3


def test_calls_that_were_to_run_once_more_get_the_error_of_a_start_that_fails(flavour: Flavour) -> None:
    """They do not wait for a worker that does not come; and the next call tries again."""
    load = Load()

    def run(items: list[int]) -> list[Any]:
        if len(load.names) == 1:
            load.failures = 1
            raise batched.RestartWorker from RuntimeError("device lost")
        return [batched.current_worker().state for _ in items]

    with batched.Workers(["gpu"], initializer=load) as gpus:
        (fn,) = share(flavour, gpus, run)
        with pytest.raises(OSError, match="no memory on gpu"):
            flavour.call(fn, [1, 2, 3])
        assert flavour.call(fn, 1) == "gpu, load 3"
        assert fn.stats.total_failed == 3


def test_a_restart_without_a_cause_says_what_to_write(flavour: Flavour) -> None:
    """Callers would get an error without words."""

    def run(items: list[int]) -> list[Any]:
        raise batched.RestartWorker

    with batched.Workers(1) as gpus:
        (fn,) = share(flavour, gpus, run, isolate_errors=False)
        with pytest.raises(batched.RestartWorker, match="write `raise batched.RestartWorker from error`"):
            flavour.call(fn, 1)


def test_a_call_from_inside_a_function_on_the_same_workers_is_refused(flavour: Flavour) -> None:
    """It would wait for the worker that makes it."""
    flavour.needs_threads()
    with batched.Workers(1, name="gpu") as gpus:
        inner, outer = share(flavour, gpus, list, lambda items: [inner(item) for item in items])
        with pytest.raises(RuntimeError, match="from a worker of 'gpu', on which it runs itself"):
            flavour.call(outer, 1)


def test_a_shut_down_function_leaves_the_workers_to_the_others(flavour: Flavour) -> None:
    """What it had queued has run."""
    gate = Gate(shut=True)
    with batched.Workers(1) as workers:
        first, second = share(flavour, workers, gate, list)
        futures = [flavour.start(first, 1)]
        gate.wait_for_batch()
        futures.append(flavour.start(first, 2))
        gate.open()
        flavour.close(first)
        assert [future.result(PATIENCE_S) for future in futures] == [1, 2]
        with pytest.raises(batched.ClosedError):
            flavour.call(first, 3)
        assert flavour.call(second, 3) == 3


@pytest.mark.parametrize("cancels", [False, True])
def test_shutting_the_workers_down_shuts_all_their_functions_down(flavour: Flavour, cancels: bool) -> None:
    """Calls in the queues run, or are cancelled; functions made later take none."""
    gate = Gate(shut=True)
    workers = batched.Workers(1)
    first, second = share(flavour, workers, gate, list)
    running = flavour.start(first, 1)
    gate.wait_for_batch()
    queued = flavour.start(second, 2)
    workers.shutdown(wait=False, cancel_futures=cancels)
    gate.open()
    workers.shutdown()
    assert running.result(PATIENCE_S) == 1
    if cancels:
        with pytest.raises(CancelledError):
            queued.result(PATIENCE_S)
    else:
        assert queued.result(PATIENCE_S) == 2
    for fn in (first, second, *share(flavour, workers, list)):
        with pytest.raises(batched.ClosedError, match="its workers 'workers' were shut down"):
            flavour.call(fn, 3)
    with pytest.raises(batched.ClosedError):
        workers.start()


def test_a_deadline_is_kept_behind_a_batch_of_another_function(flavour: Flavour) -> None:
    """A call that cannot be in time is told at once, and does not run."""
    gate = Gate(shut=True)
    with batched.Workers(1) as workers:
        slow, quick = share(flavour, workers, gate, list)
        held = flavour.start(slow, 1)
        gate.wait_for_batch()
        with pytest.raises(TimeoutError):
            flavour.call(quick.options(deadline_ms=20), 2)
        gate.open()
        assert held.result(PATIENCE_S) == 1
        assert flavour.call(quick, 3) == 3
        assert quick.stats.total_processed == 1


def test_streams_share_workers(flavour: Flavour) -> None:
    """Each piece knows the worker."""
    if flavour.name == "threads":
        pytest.skip("a thread of its own reads a stream as any other does")

    def count(items: list[int]) -> Any:
        for step in range(2):
            yield [(step, batched.current_worker().name) for _ in items]

    with batched.Workers(["a"]) as workers:
        (fn,) = share(flavour, workers, count)
        assert list(flavour.stream(fn, 1)) == [(0, "a"), (1, "a")]


def test_copies_of_a_function_share_its_workers(flavour: Flavour) -> None:
    """As copies, and as pickles, of the workers are these, while they live in this process."""
    with batched.Workers(["a", "b"]) as workers:
        assert copy.copy(workers) is copy.deepcopy(workers) is workers
        assert pickle.loads(pickle.dumps(workers)).pool is workers.pool
        heavy = pickle.loads(pickle.dumps(workers.weighted(2)))
        assert (heavy.weight, heavy.pool) == (2, workers.pool)
        (fn,) = share(flavour, workers, worker_that_runs)
        assert flavour.call(copy.copy(fn), 1)[1] in {"a", "b"}
