"""Calls that are answered at once, where their caller is: in its thread, or on its event loop."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from inspect import iscoroutine
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call
from batched._core.lessons import NOTHING, Lessons
from batched._core.options import Options
from batched._core.stats import Stats
from batched._drivers.arrivals import Entry, own, put
from batched._drivers.current_batch import IN_THREAD, RUNNING, known_batch
from batched._drivers.current_worker import OF_THREAD, Worker
from batched._drivers.dispatcher import Dispatcher
from batched._drivers.driver import Driver
from batched._drivers.event_loop import LoopDriver
from batched._drivers.generators import run_steps
from batched._drivers.thread import ThreadDriver
from batched._drivers.wakeups import FUTURE, ask, resolve_on_loop, set_unless_done, settle
from batched._drivers.worker_pool import WorkerPool
from batched._locks import Freed, Guard
from batched._parts.stages import Steps
from batched.errors import ClosedError, RestartWorker
from batched.testing.own_loops import result_of

__all__ = ["inline"]

Work: TypeAlias = Generator[Any, Any, Any]
"""Work that yields what it has to await, and is sent the result of that."""

_changing = Guard()
_depth = 0
_before: dict[Entry, Callable[..., Any]] = {}
"""The methods of drivers, while others are in their place."""
_at_work: set[_Inline] = set()
_ends = Guard()  # of work, which the collector may end too
_tasks: set[asyncio.Task[None]] = set()  # of work that goes on: a loop keeps its tasks weakly
_turns: dict[tuple[asyncio.AbstractEventLoop, Driver], asyncio.Semaphore] = {}
_running: dict[Batch, Driver] = {}
_answering: WeakKeyDictionary[Call, _Inline] = WeakKeyDictionary()
_workers: WeakKeyDictionary[Any, Worker] = WeakKeyDictionary()
_making_state = Guard()


@contextmanager
def inline() -> Iterator[None]:
    """Have every call of every batched function run at once, in the thread of its caller.

    Its batch has its items only, so nothing waits and no worker runs, and a breakpoint in the function shows
    the caller. Results, errors, options, caches and `stats` are as ever; deadlines never pass. But tasks and
    threads that call at once share nothing, so that equal items of theirs run for each, with a cache too.
    `on_batch` has been told when a call returns. The context variables of the caller are not set in the
    function, as in a service; but what its thread is set to, such as `torch.no_grad()`, holds there too.

    For a task that awaits its call, the batches of an `async def` function run on the loop of the task, as
    many at once as `max_concurrent_batches` says: the function may use locks and sessions of that loop. For
    other callers they run on a loop that the function keeps, as its worker would, in another thread if one
    runs in this.

    It holds for all threads of the process until the `with` block ends, and may be nested. Only what a server
    in this process gets from its clients runs as ever.
    """
    global _depth  # noqa: PLW0603
    with Freed(_changing.lock), _changing.lock:
        _depth += 1
        if _depth == 1:
            _before.update(own(_STAND_INS))  # first: other threads call meanwhile
            put(_STAND_INS)
    try:
        yield
    finally:
        with Freed(_changing.lock), _changing.lock:
            _depth -= 1
            if not _depth:
                put(_before)
                _turns.clear()


def _push(driver: ThreadDriver, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
    """Answer `call`, in the place of having it arrive."""
    is_awaited = call.waits_at is not None and call.waits_at is not FUTURE
    if _is_of_client(call):
        _before[ThreadDriver, "push"](driver, call, waits)
        return
    _answer(_Inline(driver), call, of_map=waits, is_awaited=is_awaited)


def _push_async(driver: LoopDriver, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
    """Answer `call` of the running task."""
    if asyncio.current_task() is None:  # a server has it from a client
        _before[LoopDriver, "post_async"](driver, call, waits)
        return
    call._loop = asyncio.get_running_loop()  # noqa: SLF001  tasks look for it by this name
    call.waits_at = dispatcher = _Inline(driver)  # which is asked to drop the call if its task is cancelled
    _answer(dispatcher, call, of_map=waits, is_awaited=True)


def _is_of_client(call: Call) -> bool:
    """Whether a server in this process has `call` from a client: no task waits for it, and no thread."""
    if call.waits_at is None:
        waiter = getattr(call, "waiter", None)
        return waiter is not None and not hasattr(waiter, "locked")
    return call.waits_at is not FUTURE and asyncio.current_task() is None


def _expect(driver: Driver, call: Call) -> None:  # noqa: ARG001  as for drivers
    """Let `call` wait for its cache: deadlines never pass."""
    call.deadline = None


def _answer(dispatcher: _Inline, call: Call, *, of_map: bool, is_awaited: bool) -> None:
    """Answer `call` at once, unless it `is_awaited` and has to await something itself."""
    driver = dispatcher.driver
    driver.check()
    outer = known_batch()
    running: Any = None if outer is None else _running.get(outer)
    if running is driver:
        raise driver.own_error("its own batch function")
    outer_pool: WorkerPool | None = getattr(running, "pool", None)
    if isinstance(driver, ThreadDriver) and outer_pool is not None and outer_pool is driver.pool:
        raise driver.inside_error(outer_pool)
    call.deadline = None
    call.note_context()
    _answering[call] = dispatcher
    work = dispatcher.answer(call, of_map=of_map)
    if not is_awaited:
        dispatcher.finish(work)
    elif (awaited := dispatcher.advance(work)) is not None:
        dispatcher.has_task = True
        going_on = dispatcher.go_on(work, awaited)
        task = asyncio.get_running_loop().create_task(going_on, context=Context())
        _tasks.add(task)
        task.add_done_callback(partial(dispatcher.ended, work))


def _drop(driver: ThreadDriver, call: Call) -> None:
    """Drop `call` where it is: its caller has left."""
    (_answering.get(call) or driver).batcher.leave(call)


def _snapshot(driver: Driver, batchers: list[Batcher], gone: Lessons = NOTHING, *, amid_step: bool) -> Stats:
    """Return the figures of a driver, with the calls that are being answered here."""
    there = [each.batcher for each in list(_at_work) if each.driver is driver]
    found: Stats = _before[Driver, "_snapshot"](driver, [*batchers, *there], gone, amid_step=amid_step)
    return found


def _shutdown(driver: ThreadDriver, *, wait: bool, cancel_futures: bool) -> None:
    """Wait for the calls that are being answered in other threads, and shut `driver` down."""
    if wait:
        _check_outside(driver)
        driver._close()  # noqa: SLF001
        for each in _of(driver):
            gate = threading.Event()
            if each.thread != _thread.get_ident() and each.call_when_ended(gate.set):
                gate.wait()
    _before[ThreadDriver, "shutdown"](driver, wait=wait, cancel_futures=cancel_futures)


async def _aclose(driver: ThreadDriver | LoopDriver) -> None:
    """Wait for the calls that are being answered, and close `driver`."""
    _check_outside(driver)
    driver._close()  # noqa: SLF001
    loop = asyncio.get_running_loop()
    for each in _of(driver):
        ended = loop.create_future()
        if each.call_when_ended(partial(ask, loop, set_unless_done, ended)):
            await ended
    kind = ThreadDriver if isinstance(driver, ThreadDriver) else LoopDriver
    await _before[kind, "aclose"](driver)


def _of(driver: Driver) -> list[_Inline]:
    """Return the work for `driver` that has not ended."""
    return [each for each in [*_at_work] if each.driver is driver]


def _check_outside(driver: ThreadDriver | LoopDriver) -> None:
    """Raise inside of a batch of `driver`, which cannot wait for its own end."""
    driver.check_outside()
    outer = known_batch()
    if outer is not None and _running.get(outer) is driver:
        raise ClosedError(f"{driver.name} cannot wait for its shutdown from inside its own batch function")


_STAND_INS: dict[Entry, Callable[..., Any]] = {
    (ThreadDriver, "push"): _push,
    (ThreadDriver, "push_future"): _push,
    (LoopDriver, "post_async"): _push_async,
    (Driver, "expect"): _expect,
    (ThreadDriver, "_drop"): _drop,
    (Driver, "_snapshot"): _snapshot,
    (ThreadDriver, "shutdown"): _shutdown,
    (ThreadDriver, "aclose"): _aclose,
    (LoopDriver, "aclose"): _aclose,
}
"""What is in the place of the methods by which calls come, and of others."""


class _Inline(Dispatcher):
    """A batcher for one call."""

    has_task = False
    """Whether a task of the caller's loop answers the call, so that the caller may wait by now."""

    def __init__(self, driver: ThreadDriver | LoopDriver) -> None:
        super().__init__(driver)
        self.driver: ThreadDriver | LoopDriver = driver  # pyright: ignore[reportIncompatibleVariableOverride]
        self.batches: set[Batch] = set()
        self.thread: int = _thread.get_ident()
        self._batch: Batch | None = None
        self._worker: Worker | None = None
        self._then: list[Callable[[], object]] = []
        self._context = Context()  # no variable of the caller is set there, and none that is set is seen

    def call_when_ended(self, callback: Callable[[], object]) -> bool:
        """Have `callback` called when the work has ended; return False if it has."""
        with Freed(_ends.lock), _ends.lock:
            if self in _at_work:
                self._then.append(callback)
            return self in _at_work

    # -- work, and what it awaits ---------------------------------------------------------------------------

    def advance(self, work: Work, found: Any = None, error: BaseException | None = None) -> Any:
        """Go on with what was awaited, or failed; return what is to be awaited next, None at the end."""
        with _current(self._batch, self._worker):
            try:
                if error is not None:
                    return self._context.run(work.throw, error)
                return self._context.run(work.send, found)
            except StopIteration:
                return None

    def finish(self, work: Work) -> None:
        """Do all of the work in this thread; what is awaited has a loop of its own."""
        loops = loops_of(self.driver)
        with _current(None, None):
            self._context.run(_done, work, lambda awaited: result_of(loops, self._value(awaited)))

    async def go_on(self, work: Work, awaited: Any) -> None:
        """Do the rest of the work in this task."""
        most = self.driver.options.max_concurrent_batches
        its = (asyncio.get_running_loop(), self.driver)
        turns = _turns.setdefault(its, asyncio.Semaphore(most))
        while awaited is not None:
            value = self._value(awaited)
            try:
                async with turns:
                    found = await value
            except BaseException as error:  # noqa: BLE001  for the work
                awaited = self.advance(work, error=error)
            else:
                awaited = self.advance(work, found)
            finally:
                value.close()  # if its turn has not come

    def ended(self, work: Work, task: asyncio.Task[None]) -> None:
        """Forget a `task`, and end its `work`: it may have been cancelled before its first turn."""
        _tasks.discard(task)
        self._context.run(work.close)

    def _value(self, awaited: Any) -> Coroutine[Any, Any, Any]:
        batch: Any = self._batch  # it is in the midst of one
        return _inside(batch, awaited)

    # -- the work -------------------------------------------------------------------------------------------

    def answer(self, call: Call, *, of_map: bool) -> Work:
        """Run all batches of `call`, and wake its caller."""
        with Freed(_ends.lock), _ends.lock:
            _at_work.add(self)
        try:
            with self:
                self.batcher.drain()
                self.batcher.admit(call, wait=True, of_map=of_map)
            while (batch := self._next()) is not None:
                yield from self._run(batch)
            self.driver.teller.flush()
        except BaseException as error:
            self.recover(error, may_refuse=True)
            self.answer_lost(None, error, and_all=True)  # nothing goes on with it: its loop may be gone
            raise
        finally:
            with Freed(_ends.lock), _ends.lock:
                _at_work.discard(self)
            for callback in self._then:
                callback()

    def _next(self) -> Batch | None:
        with self:
            found = self.batcher.next(monotonic())
        return found if isinstance(found, Batch) else None

    def _run(self, batch: Batch) -> Work:
        parts: list[Any] = []
        failure: BaseException | None = None
        self._batch = IN_THREAD[_thread.get_ident()] = batch
        self.batches.add(batch)
        _running[batch] = self.driver
        try:
            if isinstance(self.driver, ThreadDriver):
                self._worker = OF_THREAD[_thread.get_ident()] = stand_in_of(self.driver.options)
            if self.streams:
                step = partial(self.step, batch)
                yield from run_steps(batch.run(self.collator), step, self.name, _known) or ()
            else:
                outputs = yield from outputs_of(batch.run(self.collator))
                parts = batch.split(outputs, self.collator)
        except GeneratorExit:  # the loop is gone, and the caller with it
            raise
        except BaseException as error:  # noqa: BLE001  for the caller, whatever it is
            failure = error
        finally:
            self.batches.discard(batch)
            _running.pop(batch, None)
        if isinstance(failure, RestartWorker):
            forget_stand_in(self.driver.options)
        with self:
            batcher = self.batcher
            if failure is None:
                batcher.finish(batch, parts, monotonic())
            else:
                self.fail(batch, failure, monotonic())
        parts, outputs, failure = [], None, None  # an error, perhaps a result, leads to this frame
        batch.clear()

    def _wake_callers(self, calls: list[Call]) -> None:
        tasks = []
        for call in calls:
            waiter = getattr(call, "waiter", None)
            if call.waits_at is FUTURE:
                settle([call], self.name)
            elif call.waits_at is not None:
                tasks.append(call)
            elif waiter is not None and waiter.locked():
                waiter.release()
        if tasks and self.has_task:  # they may wait by now, and one task cannot run amid another
            ask(tasks[0]._loop, resolve_on_loop, tasks)  # noqa: SLF001  it may be gone
        else:
            for call in tasks:
                call.is_woken = True

    def _out_of_hand(self) -> list[Batch]:
        return [*self.batcher.running]

    def _count_anew(self) -> None:
        pass

    def replan(self) -> None:
        """Do nothing: there is no other call."""


def outputs_of(found: Any) -> Work:
    """Return what a batch has come to, of what its function has returned, or after all of its stages."""
    if not isinstance(found, Steps):
        return (yield from _known(found))
    if found.prepares is not None:
        found.prepared((yield from _known(found.prepare())))
    if found.finishes is None:
        return (yield from _known(found.run()))
    return (yield from _known(found.finish((yield from _known(found.run())))))


def run_at_once(batch: Batch, collator: Any, wait: Callable[[Any], Any], worker: Worker | None = None) -> Any:
    """Return what a batch has come to, in this thread; `wait` is given what is to be awaited."""
    return Context().run(_run_in_this_context, batch, collator, wait, worker)


def _run_in_this_context(
    batch: Batch, collator: Any, wait: Callable[[Any], Any], worker: Worker | None
) -> Any:
    with _current(batch, worker):
        return _done(outputs_of(batch.run(collator)), lambda awaited: wait(_inside(batch, awaited)))


def _done(work: Work, wait: Callable[[Any], Any]) -> Any:
    """Do all of the work, and return what it does; `wait` is given what is to be awaited."""
    try:
        awaited = next(work)
        while True:
            try:
                value = wait(awaited)
            except BaseException as error:  # noqa: BLE001  for the work
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
    except StopIteration as end:
        return end.value


def check_runs_here(driver: Driver, name: str) -> None:
    """Raise an error if the function of `driver` is in another process."""
    if not isinstance(driver, ThreadDriver | LoopDriver):
        raise TypeError(
            f"{name} runs in its server, so no batch of it can be run here: give the function that is "
            f"served, in its own module"
        )


def loops_of(driver: Driver) -> Driver | WorkerPool:
    """Return what the loops of a function belong to: its driver, or the workers that it shares."""
    pool: WorkerPool | None = getattr(driver, "pool", None)
    return driver if pool is None else pool


def stand_in_of(options: Options) -> Worker:
    """Return what is there for a worker of a function: the first one, with a state that is made here."""
    workers: Any = options.workers
    if workers is None:
        return Worker(0, "0")
    pool, name = workers.pool, workers.names[0]
    with Freed(_making_state.lock), _making_state.lock:
        if pool not in _workers:
            state = None if pool.initializer is None else pool.initializer(name)
            state = result_of(pool, _awaited(state)) if hasattr(type(state), "__await__") else state
            _workers[pool] = Worker(0, name, state)
        return _workers[pool]


def forget_stand_in(options: Options) -> None:
    """Have the state of the first worker of a function be made anew."""
    if (workers := options.workers) is not None:
        _workers.pop(workers.pool, None)


async def _awaited(value: Any) -> Any:
    return await value


@contextmanager
def _current(batch: Batch | None, worker: Worker | None) -> Iterator[None]:
    """Have a batch and a worker be what `current_batch` and `current_worker` find, in this thread."""
    me = _thread.get_ident()
    known: list[tuple[Any, Any]] = [(IN_THREAD, batch), (OF_THREAD, worker)]
    outer = [of.get(me) for of, _ in known]
    for of, its in known:
        if its is not None:
            of[me] = its
    try:
        yield
    finally:
        for (of, _), before in zip(known, outer, strict=True):
            if before is None:
                of.pop(me, None)
            else:
                of[me] = before


async def _inside(batch: Batch, awaited: Any) -> Any:
    """Await something inside of a batch."""
    RUNNING.set(batch)
    return await awaited


def _known(value: Any) -> Work:
    if type(value) is list or not hasattr(type(value), "__await__"):
        return value
    try:
        return (yield value)
    finally:
        if iscoroutine(value):
            value.close()  # if the loop has ended before its turn came: Python would warn of it
