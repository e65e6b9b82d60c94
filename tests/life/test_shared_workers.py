"""Workers that functions share: they start, fork, end and are collected as those of one function are."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import batched
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.script import run_script


def threads_of(name: str) -> list[threading.Thread]:
    """Return the threads of the workers of this name."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"batched: {name} ")]


class Model:
    """A class with a batched method, of which all instances share workers."""

    workers = batched.Workers(2, name="of all")

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @batched.dynamically(timeout_ms=0, workers=workers)
    def run(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_many_instances_have_no_more_threads_than_the_workers() -> None:
    """And one that is idle is collected at once."""
    models = [Model(factor) for factor in range(times(100) * 20)]
    assert [model.run(2) for model in models] == [2 * model.factor for model in models]
    assert 1 <= len(threads_of("of all")) <= 2
    gone = [weakref.ref(model) for model in models]
    models.clear()
    until(lambda: all(reference() is None for reference in gone))


def test_an_instance_is_collected_while_others_are_busy() -> None:
    """Nothing of the workers keeps one that has nothing to run."""
    busy = Model(1)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            busy.run([1, 2, 3])

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        model = Model(3)
        assert model.run(2) == 6
        gone = weakref.ref(model)
        del model
        until(lambda: gone() is None)
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_the_threads_end_with_the_last_function_and_the_last_reference() -> None:
    """Not before, and what the functions have sent has run; the states go with them."""

    class State:
        pass

    states: list[weakref.ref[State]] = []

    def load(_: str) -> State:
        state = State()
        states.append(weakref.ref(state))
        return state

    workers = batched.Workers(1, initializer=load, name="to end")
    functions = [batched.dynamically(list, timeout_ms=0, workers=workers) for _ in range(2)]
    assert [fn(1) for fn in functions] == [1, 1]
    del workers
    functions.pop()
    gc.collect()
    assert functions[0](2) == 2
    functions.clear()

    def has_ended() -> bool:
        gc.collect()
        return not threads_of("to end") and states[0]() is None

    until(has_ended)


def reached_from_its_options(gate: Gate, **options: Any) -> Any:
    """Return a batched function that can be reached from its own `fair_by`."""
    known: list[Any] = []
    fn = batched.dynamically(gate, timeout_ms=0, fair_by=lambda item: bool(known) and item, **options)
    known.append(fn)
    return fn


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_a_future_that_is_kept_keeps_no_worker() -> None:
    """Whether it has an answer or was cancelled, the threads end with the last function."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, batch_size=1, workers=batched.Workers(1, name="of a future"))
    kept = [fn.submit(1), fn.submit(2)]
    gate.wait_for_batch()
    assert kept[1].cancel()
    gate.open()
    assert kept[0].result(PATIENCE_S) == 1
    del fn

    def has_ended() -> bool:
        gc.collect()  # more than once: the worker may look at the function for a last time meanwhile
        return not threads_of("of a future")

    until(has_ended)
    assert kept[1].cancelled()


def test_a_function_that_was_shut_down_is_kept_by_no_worker() -> None:
    """Though a worker has asked for it once more, at the end of its last batch, and the others sleep.

    One that is reached from its own options, as that of a server is, tells no worker when it is dropped.
    """
    pool = batched.Workers(2)
    gate = Gate(shut=True)
    fn = reached_from_its_options(gate, workers=pool, batch_size=1)
    calls = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()
    for ran in (1, 2):
        gate.let_through()
        until(lambda ran=ran: sum(each.batches for each in pool.stats.functions.values()) == ran)
    assert [call.result(PATIENCE_S) for call in calls] == [0, 1]
    fn.shutdown()
    gone = weakref.ref(fn)
    del fn, calls

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    until(is_gone)
    pool.shutdown()


def test_a_weight_goes_with_its_function() -> None:
    """Another one of its name, as when a cell of a notebook runs again, has the weight that it was given."""
    workers = batched.Workers(1)

    def embed(items: list[int]) -> list[int]:
        return items

    fn = batched.dynamically(embed, workers=workers.weighted(5), name="embed", timeout_ms=0)
    assert fn(1) == 1
    assert workers.pool.agenda.turns.account("embed").weight == 5
    del fn

    def is_gone() -> bool:
        gc.collect()
        return workers.pool.agenda.turns.account("embed").weight is None

    until(is_gone)
    workers.shutdown()


def test_no_thread_starts_and_no_state_is_made_before_the_first_call() -> None:
    """Shutting down what was never called starts none either."""
    made: list[str] = []
    workers = batched.Workers(2, initializer=made.append, name="lazy pool")
    fn = batched.dynamically(list, workers=workers)
    assert fn.stats.total_accepted == 0
    fn.configure(batch_size=3)
    fn.shutdown()
    workers.shutdown()
    assert not made
    assert not threads_of("lazy pool")


def test_start_makes_all_states_and_raises_the_first_error() -> None:
    """As a service does before it takes traffic; it may be tried again."""
    failing = {"b"}

    def load(name: str) -> str:
        if name in failing:
            raise OSError(f"no {name}")
        return name

    with batched.Workers(["a", "b"], initializer=load) as workers:
        with pytest.raises(OSError, match="no b"):
            workers.start()
        assert [worker.is_ready for worker in workers.stats.workers] == [True, False]
        failing.clear()
        workers.start()
        workers.start()
        assert all(worker.is_ready for worker in workers.stats.workers)


class Wordless(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class WordlessLoad(Wordless):
    """An initializer that cannot be printed either."""

    def __call__(self, name: str) -> None:
        raise Wordless


def test_the_table_of_the_stats_has_one_line_for_an_error() -> None:
    """As those of CUDA have several; and an error without words is named."""

    def load(name: str) -> None:
        raise (
            Wordless if name == "a" else RuntimeError(f"no memory on {name}\nmore is said\nin further lines")
        )

    with batched.Workers(["a", "b"], initializer=load) as workers:
        with pytest.raises((Wordless, RuntimeError)):
            workers.start()
        until(lambda: all(worker.error for worker in workers.stats.workers))
        assert [worker.error for worker in workers.stats.workers] == [
            "Wordless",
            "RuntimeError: no memory on b",
        ]
        assert len(str(workers.stats).splitlines()) == 4


def test_what_cannot_be_printed_loses_no_call() -> None:
    """Neither an initializer, nor the error that it raises, nor one for which a worker is made anew."""
    runs: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        runs.append(items)
        if len(runs) == 1:
            raise batched.RestartWorker from Wordless
        return items

    future = batched.dynamically(list, workers=batched.Workers(1, initializer=WordlessLoad())).submit(1)
    with pytest.raises(Wordless):
        future.result(PATIENCE_S)
    assert batched.dynamically(run, workers=batched.Workers(1)).submit(1).result(PATIENCE_S) == 1
    assert runs == [[1], [1]]


def test_start_tries_again_while_the_worker_that_failed_ends() -> None:
    """Else it would raise an error that a call has had already."""
    tries: list[str] = []

    def load(name: str) -> None:
        tries.append(name)
        if len(tries) == 1:
            raise OSError(f"no {name}")

    with batched.Workers(["a"], initializer=load) as workers, ThreadPoolExecutor(1) as other:
        gate = Gate(shut=True)
        fn = batched.dynamically(list, workers=workers)
        future = fn.submit(1)

        def wait_at_gate(_: object) -> None:  # in the worker that has failed
            gate([])

        future.add_done_callback(wait_at_gate)
        try:
            gate.entered.acquire(timeout=PATIENCE_S)
            other.submit(workers.start).result(PATIENCE_S)
        finally:
            gate.open()
        assert isinstance(future.exception(PATIENCE_S), OSError)
        assert tries == ["a", "a"]
        assert fn(2) == 2


@pytest.mark.parametrize("heals", [False, True])
def test_a_callback_that_waits_after_a_start_that_failed_holds_up_no_later_call(heals: bool) -> None:
    """Each later call has its answer, or its own error after one more try."""
    tries: list[str] = []

    def load(name: str) -> None:
        tries.append(name)
        if len(tries) == 1 or not heals:
            raise OSError(f"no {name}, try {len(tries)}")

    gate = Gate(shut=True)
    with batched.Workers(["a"], initializer=load) as workers, ThreadPoolExecutor(1) as other:
        fn, another = (batched.dynamically(list, workers=workers) for _ in range(2))
        future = fn.submit(0)
        future.add_done_callback(lambda _: gate([]))  # in the worker that has failed
        try:
            gate.wait_for_batch()
            for number, each in enumerate((fn, another), 2):
                later = other.submit(each, number)
                if heals:
                    assert later.result(PATIENCE_S) == number
                else:
                    with pytest.raises(OSError, match=f"no a, try {number}"):
                        later.result(PATIENCE_S)
        finally:
            gate.open()
        assert len(tries) == (2 if heals else 3)
        assert isinstance(future.exception(PATIENCE_S), OSError)


def test_start_does_not_raise_the_error_of_a_worker_that_has_just_ended() -> None:
    """It has started another one, and waits for that: at whatever moment it comes."""
    tries: list[str] = []
    first, second = threading.Event(), threading.Event()

    def load(name: str) -> None:
        tries.append(name)
        if len(tries) == 1:
            assert first.wait(PATIENCE_S)
            raise OSError(f"no {name}")
        assert second.wait(PATIENCE_S)

    with batched.Workers(["a"], initializer=load) as workers, ThreadPoolExecutor(1) as other:
        fn = batched.dynamically(list, workers=workers)
        started: list[Any] = []
        worker = workers.pool.workers[0]

        def start_meanwhile() -> None:  # in the worker that has failed, once it has left the lock at its end
            started.append(other.submit(workers.start))
            until(lambda: worker.when_started)

        future = fn.submit(1)
        future.add_done_callback(lambda _: workers.pool.lock.later.append(start_meanwhile))
        until(lambda: tries)
        failing = worker.thread
        first.set()
        failing.join(PATIENCE_S)
        assert isinstance(future.exception(PATIENCE_S), OSError)
        second.set()
        started[0].result(PATIENCE_S)


def no_model(name: str) -> None:
    """Fail, as an initializer does."""
    raise RuntimeError(f"no model for {name}")


def test_a_call_that_another_thread_has_queued_starts_a_worker_after_a_start_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller finds the inbox empty: a thread that reads `stats` has moved the call just before."""
    fn: Any = batched.dynamically(Gate(), workers=batched.Workers(1, initializer=no_model))
    with pytest.raises(RuntimeError, match="no model"):
        fn(1)
    batcher = fn._driver.batcher  # noqa: SLF001
    wakes = batcher.wakes

    def too_late(call: Any) -> bool:
        assert fn.stats.queue_size == 1
        return bool(wakes(call))

    monkeypatch.setattr(batcher, "wakes", too_late)
    with pytest.raises(RuntimeError, match="no model"):
        fn.submit(2).result(PATIENCE_S)
    assert fn.stats.total_cancelled == 2


def test_a_broken_state_is_gone_before_the_new_one_is_made() -> None:
    """The device has no memory for two."""

    class State:
        pass

    made: list[weakref.ref[State]] = []
    left: list[int] = []

    def load(_: str) -> State:
        left.append(sum(reference() is not None for reference in made))
        state = State()
        made.append(weakref.ref(state))
        return state

    def run(items: list[int]) -> list[int]:
        state = batched.current_worker().state
        if len(made) == 1:
            try:
                raise OSError("lost", id(state))
            except OSError as error:
                raise batched.RestartWorker from error
        return items

    with batched.Workers(1, initializer=load) as workers:
        fn = batched.dynamically(run, timeout_ms=0, workers=workers)
        assert fn([1, 2]) == [1, 2]
        assert left == [0, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_an_initializer_that_failed_had_made_is_gone_before_the_next_try(is_async: bool) -> None:
    """Even if its error is kept, by a caller and by the stats: half of a model takes memory, too."""

    class Half:
        pass

    halves: list[weakref.ref[Half]] = []
    left: list[Any] = []

    def load(_: str) -> str:
        left.extend(half() for half in halves)
        half = Half()
        halves.append(weakref.ref(half))
        if len(halves) == 1:
            try:
                raise MemoryError("on the device")
            except MemoryError as error:
                raise OSError("cannot load") from error
        return "loaded"

    async def load_on_loop(name: str) -> str:
        return load(name)

    initializer: Any = load_on_loop if is_async else load
    with batched.Workers(["npu"], initializer=initializer) as workers:
        fn = batched.dynamically(list, workers=workers)
        with pytest.raises(OSError, match="cannot load") as caught:
            fn(1)
        assert fn(1) == 1
    assert left == [None]
    assert caught.traceback[-1].name == "load"


def test_a_batch_that_waits_for_the_end_of_another_function_is_told_of_their_workers() -> None:
    """That function would wait for the worker which runs the batch: it is not inside its own."""
    with batched.Workers(1, name="shared") as workers:

        @batched.dynamically(workers=workers)
        def other(items: list[int]) -> list[int]:
            return items

        @batched.dynamically(workers=workers)
        def ends(items: list[int]) -> list[int]:
            other.shutdown()
            return items

        with pytest.raises(batched.ClosedError, match="other cannot wait .* inside a worker of 'shared'"):
            ends(1)
        assert other(1) == 1


def test_a_lone_caller_wakes_no_second_worker_for_its_batch() -> None:
    """A burst that fits one batch is not divided among idle workers."""
    gate = Gate(shut=True)
    with batched.Workers(2) as workers:
        workers.start()
        fn = batched.dynamically(gate, batch_size=8, timeout_ms=0, workers=workers)
        first = [fn.submit(item) for item in range(2)]
        for _ in range(2 if len(gate.batches) > 1 else 1):
            gate.wait_for_batch()
        rest = [fn.submit(item) for item in range(10, 14)]
        gate.open()
        assert [future.result(PATIENCE_S) for future in first + rest] == [0, 1, 10, 11, 12, 13]


def test_functions_in_many_threads_share_workers() -> None:
    """Each answer is that of its function, whatever runs at once."""

    def times_(factor: int) -> Any:
        return lambda items: [factor * item for item in items]

    with batched.Workers(3) as workers, ThreadPoolExecutor(8) as pool:
        functions = [
            batched.dynamically(times_(factor), batch_size=4, timeout_ms=0.5, workers=workers)
            for factor in range(6)
        ]
        asked = [(number % 6, number) for number in range(times(100) * 60)]
        answers = list(pool.map(lambda pair: functions[pair[0]](pair[1]), asked))
        assert answers == [factor * number for factor, number in asked]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_starts_afresh() -> None:
    """It makes states of its own, while batches of the parent run and others wait."""
    assert (
        run_script(
            """
            gate, inside, made = threading.Event(), threading.Semaphore(0), []

            def load(name):
                made.append(name)
                return os.getpid()

            gpus = batched.Workers(["a", "b"], initializer=load)

            @batched.dynamically(batch_size=1, timeout_ms=0, workers=gpus)
            def held(items):
                inside.release()
                gate.wait(20)
                return [batched.current_worker().state for _ in items]

            @batched.dynamically(timeout_ms=0, workers=gpus)
            async def other(items):
                return [batched.current_worker().state for _ in items]

            assert other(1) == os.getpid()
            futures = [held.submit(item) for item in range(5)]
            for _ in range(2):
                assert inside.acquire(timeout=20)
            child = os.fork()
            if not child:
                gate.set()
                fine = held([1, 2]) == [os.getpid()] * 2 and other(1) == os.getpid()
                os._exit(int(not fine))
            assert os.waitpid(child, 0)[1] == 0
            gate.set()
            print([future.result(20) == os.getpid() for future in futures])
            """
        )
        == "[True, True, True, True, True]\n"
    )


@pytest.mark.parametrize("way", ["nothing", "shutdown", "an idle pool"])
def test_the_interpreter_ends(way: str) -> None:
    """The running batch is waited for; what is only queued is cancelled."""
    script = {
        "nothing": "",
        "shutdown": "gpus.shutdown(wait=False)",
        "an idle pool": "first.result(20)",
    }[way]
    run_script(
        f"""
        gpus = batched.Workers(1)
        entered = threading.Event()

        @batched.dynamically(batch_size=1, timeout_ms=0, workers=gpus)
        def slow(items):
            entered.set()
            time.sleep(0.1)
            print("ran", flush=True)
            return items

        first = slow.submit(1)
        assert entered.wait(20)
        {script}
        """
    )


def test_a_process_that_ends_waits_for_the_running_batch_only() -> None:
    """What is only queued does not run."""
    assert (
        run_script(
            """
            gpus = batched.Workers(1)
            entered = threading.Event()

            @batched.dynamically(batch_size=1, timeout_ms=0, workers=gpus)
            def slow(items):
                entered.set()
                time.sleep(0.1)
                print("ran", items, flush=True)
                return items

            futures = [slow.submit(item) for item in range(5)]
            assert entered.wait(20)
            """
        )
        == "ran [0]\n"
    )


def test_a_worker_s_event_loop_is_closed_at_its_end() -> None:
    """Functions that are `async def` share it."""
    loops: list[Any] = []

    async def run(items: list[int]) -> list[int]:
        loops.append(asyncio.get_running_loop())
        return items

    with batched.Workers(1) as workers:
        functions = [batched.dynamically(run, timeout_ms=0, workers=workers) for _ in range(2)]
        assert [fn(1) for fn in functions] == [1, 1]
        assert loops[0] is loops[1]
        assert not loops[0].is_closed()
    assert loops[0].is_closed()


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_state_that_was_made_on_an_event_loop_is_made_anew_with_the_loop(
    error: type[BaseException],
) -> None:
    """An error that is no `Exception` ends the loop; a client that belongs to it would fail ever after."""
    made: list[asyncio.AbstractEventLoop] = []

    async def load(_: str) -> asyncio.AbstractEventLoop:
        made.append(asyncio.get_running_loop())
        return made[-1]

    async def run(items: list[int]) -> list[bool]:
        if items == [13]:
            raise error
        return [batched.current_worker().state is asyncio.get_running_loop() for _ in items]

    with batched.Workers(1, initializer=load) as workers:
        fn = batched.dynamically(run, timeout_ms=0, workers=workers)
        assert fn(1) is True
        with pytest.raises(error):
            fn(13)
        assert fn(1) is True
        assert len(made) == 2
        assert workers.stats.workers[0].restarts == 0


class MadeTogether(batched.Workers[None]):
    """Two that are made at once meet in the middle of it, if they can."""

    meeting = threading.Barrier(2)
    made = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.2)
        type(self).made += 1
        super().__init__(*args, **named)


def test_threads_that_unpickle_the_same_workers_at_once_get_the_same() -> None:
    """As a process does that loads several functions: each would have threads, and models, of its own."""
    MadeTogether.meeting.abort()
    pickled = pickle.dumps(MadeTogether(1))  # these are gone with this line
    MadeTogether.meeting.reset()
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(pickle.loads, [pickled, pickled])
    assert one is other
    assert MadeTogether.made == 2
