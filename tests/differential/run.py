"""One run: callers, mishaps and the end at once, and then a look at what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import io
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from batched import ClosedError
from tests.differential.callers import Caller, describe, threads_of
from tests.differential.judge import Judge
from tests.differential.plan import Plan, changes, draw, number_of
from tests.differential.surroundings import Behind, functions, kept_by, new_loop, watched
from tests.differential.tasks import Task
from tests.differential.work import Item, Work
from tests.kit.gate import IS_FREE_THREADED
from tests.kit.kept import driver_of

LIMIT_S = 30.0
"""How long nothing may happen before a run is said to hang."""
BUSY_S = 2.0
"""For how long callers make further calls, however slow the machine is."""


CallerT = TypeVar("CallerT", bound=Caller)


class Failure(AssertionError):
    """A run in which something was not as it is said to be."""


class Hang(Failure):
    """A run that did not come to its end."""


def run(seed: int, limit_s: float = LIMIT_S, busy_s: float = BUSY_S) -> None:
    """Run what a seed draws; raise `Failure` with all that there is to know."""
    plan = draw(seed)
    work = Work(plan)
    one = Run(plan, work, limit_s, busy_s)
    before = sys.getswitchinterval()
    try:
        with watched(plan, work), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that are gone with their loop
            sys.setswitchinterval(plan.switch_s)
            one.run()
            sys.setswitchinterval(before)
            gc.collect()  # what is raised in finalizers is of this run
    except Hang as hang:
        sys.setswitchinterval(before)
        work.violations.append(f"{hang}\n{one.dump()}")
    except Exception:
        work.violations.append(f"the test itself failed:\n{traceback.format_exc()}")
    finally:
        sys.setswitchinterval(before)
    if work.violations:
        what = "\n".join(f"  - {violation}" for violation in work.violations)
        raise Failure(f"seed {seed}: python -m tests.differential --seed {seed}\n{what}\n{plan}")


class Run:
    """The threads, the loops and the functions of one run."""

    def __init__(self, plan: Plan, work: Work, limit_s: float, busy_s: float) -> None:
        self.plan = plan
        self.work = work
        self.judge = Judge(plan, work)
        self._limit_s = limit_s
        self._until_s = time.monotonic() + busy_s
        self._kept: list[weakref.ref[Any]] = []
        self._requests: list[dict[Any, Any]] = [{} for _ in range(plan.requests)]
        self._loops = [new_loop(kind) for kind in plan.loop_kinds]
        self._release = threading.Event()
        self._settled = threading.Event()
        self._callers: list[Caller] = []
        self._fns, self._models = functions(plan, work)
        self._behind = Behind(plan, self._fns) if plan.is_remote else None
        if self._behind is not None:
            self._fns = self._behind.functions

    def run(self) -> None:
        """Do all of it."""
        plan = self.plan
        numbers = count()
        threaded = [self._caller(Caller, next(numbers)) for _ in range(plan.threads)]
        tasks = [[self._caller(Task, next(numbers)) for _ in range(size)] for size in plan.loops]
        self._callers = threaded + [task for some in tasks for task in some]
        threads = threads_of(threaded)
        loops = [
            threading.Thread(target=self._run_loop, args=(place, some), name=f"loop {place}", daemon=True)
            for place, some in enumerate(tasks)
        ]
        others = [threading.Thread(target=other, daemon=True) for other in self._others()]
        for thread in threads + loops + others:
            thread.start()
        self._until(lambda: all(each.done for each in self._callers), "callers wait")
        self._settled.set()
        self._join(threads + others)
        self._callers.clear()
        del threaded, tasks
        self._check_quiet()
        self._end()
        self._release.set()
        self._join(loops)
        self._check_nothing_left()

    def _caller(self, kind: type[CallerT], number: int) -> CallerT:
        return kind(number, self.plan, self._fns, self.judge, self._kept, self._until_s, self._requests)

    # -- what goes on meanwhile -------------------------------------------------------------------------

    def _run_loop(self, place: int, tasks: list[Task]) -> None:
        how, after_s = self.plan.leaving[place]
        loop = self._loops[place]
        if how != "abandon":
            loop.set_exception_handler(self._note_exception)
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._main(tasks, after_s if how == "leave" else None))
        else:
            loop.set_exception_handler(lambda *_: None)
            running = [loop.create_task(task.run_async()) for task in tasks]
            loop.call_later(after_s, loop.stop)
            loop.run_forever()
            self.judge.left_loops.add(loop)
            loop.close()
            del running
            gc.collect()
        for task in tasks:
            task.done = True

    async def _main(self, tasks: list[Task], after_s: float | None) -> None:
        running = [asyncio.create_task(task.run_async()) for task in tasks]
        if after_s is not None:
            await asyncio.wait(running, timeout=after_s)
            self.judge.left_loops.add(asyncio.get_running_loop())
            return
        await asyncio.gather(*running)
        running.clear()
        while not self._release.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.001)

    def _note_exception(self, loop: Any, context: dict[str, Any]) -> None:
        self.work.violated(f"an event loop says: {context}")

    def _others(self) -> list[Callable[[], None]]:
        plan = self.plan
        others = []
        if plan.configures:
            others.append(self._configure)
        if plan.reads_stats:
            others.append(self._read_stats)
        if plan.collects:
            others.append(self._collect)
        if plan.ends_after_s is not None and plan.ending != "drop":
            others.append(self._end_midway)
        return others

    def _configure(self) -> None:
        for change in changes(self.plan):
            if self._settled.wait(0.0005):
                return
            self.judge.configured(change)
            for fn in self._fns:
                fn().configure(**change)

    def _read_stats(self) -> None:
        while not self._settled.wait(0.0003):
            for fn in self._fns:
                self._check_stats(fn().stats)

    def _check_stats(self, stats: Any) -> None:
        ended = stats.total_processed + stats.total_cancelled + stats.total_expired
        if (
            stats.total_accepted != stats.queue_size + stats.running_items + ended
            or min(stats.queue_size, stats.running_items, stats.total_cancelled) < 0
            or stats.total_late > stats.total_processed
        ):
            self.work.violated(f"the counters do not add up:\n{stats}")

    def _collect(self) -> None:
        while not self._settled.wait(0.005):
            gc.collect(1)

    # -- the end ----------------------------------------------------------------------------------------

    def _end_midway(self) -> None:
        self._settled.wait(self.plan.ends_after_s)
        self._end()

    def _end(self) -> None:
        if self.plan.ending == "drop":
            return
        self.judge.closing.set()
        for fn in self._fns:
            if self.plan.drive == "thread":
                self._shut_down(fn())
            else:
                self._aclose(fn())
            if self.plan.is_remote:  # the server goes on with what has started
                stats = fn().stats
                self._until(lambda: _is_quiet(fn().stats), f"something is queued or runs:\n{stats}")
        # A caller that has looked whether the end has come may send its call after that.
        self.work.ended = not self.plan.is_remote or self._settled.is_set()

    def _shut_down(self, fn: Any) -> None:
        if self.plan.ending == "with":
            with fn:
                pass
        elif self.plan.seed % 5 == 0 and self.plan.ending == "shutdown":
            asyncio.run(fn.aclose())
        else:
            fn.shutdown(cancel_futures=self.plan.ending == "cancel")

    def _aclose(self, fn: Any) -> None:
        if self.plan.ending == "with":

            async def end() -> None:
                async with fn:
                    pass
        else:
            end = fn.aclose
        lasting = [
            loop for loop, (how, _) in zip(self._loops, self.plan.leaving, strict=True) if how == "finish"
        ]
        if lasting and self.plan.seed % 2:
            asyncio.run_coroutine_threadsafe(end(), lasting[0]).result()
        else:
            asyncio.run(end())

    # -- what is left -----------------------------------------------------------------------------------

    def _check_quiet(self) -> None:
        for fn in self._fns:
            self._until(lambda: _is_quiet(fn().stats), f"something is queued or runs:\n{fn().stats}")
            self._check_stats(fn().stats)
        plan = self.plan
        if all(how == "finish" for how, _ in plan.leaving):
            runs = sum(fn().stats.total_batches for fn in self._fns)
            ran = self.work.steps if plan.options.get("continuous") else len(self.work.batches)
            # One that was prepared goes on no further if its callers have left: it is no run of the function.
            if runs != ran and not (plan.main_stage == "prepare" and runs < ran):
                self.work.violated(f"{ran} batches ran, {runs} are counted")
            keeps = plan.options.get("cache") and not plan.options["cache_key"]
            self._requests.clear()  # its callers, which have ended, have the same list
            if not keeps and plan.ends_after_s is None:
                self._check_dead(self._kept, "items that callers have passed")

    def _check_dead(self, references: list[weakref.ref[Any]], what: str) -> None:
        deadline = time.monotonic() + 5
        while any(reference() is not None for reference in references):
            gc.collect()
            if time.monotonic() > deadline:
                kept = sum(reference() is not None for reference in references)
                one = next((reference() for reference in references if reference() is not None), None)
                if one is not None:
                    self.work.violated(f"{kept} of {len(references)} {what} are kept: {kept_by(one)}")
                return
            time.sleep(0.001)

    def _empty_classes(self) -> None:
        """Have classes keep nothing: where its threads are free, Python 3.13 keeps all classes for ever."""
        for cls in {model if isinstance(model, type) else type(model) for model in self._models}:
            if "embed" in vars(cls):
                if self.plan.binding == "classmethod":
                    asyncio.run(cls.embed.aclose())  # its threads end with the class
                del cls.embed
        self._models[:] = [model for model in self._models if not isinstance(model, type)]
        gc.collect()

    def _check_nothing_left(self) -> None:
        if self.plan.ending != "drop":
            for fn in self._fns:
                self._check_closed(fn())
        else:
            if IS_FREE_THREADED:
                self._empty_classes()
            models = [weakref.ref(model) for model in self._models]
            self._models.clear()
            self._fns.clear()
            self._check_dead(models, "instances")
        if self._behind is not None:
            self._behind.end()
        name = f"batched: run-{self.plan.seed}"
        if self.plan.ending != "drop" and self.plan.shares_workers:
            driver_of(self._fns[0]()).options.workers.shutdown()  # else they end with the last function
        limit = time.monotonic() + 10
        while any(thread.name.startswith(name) for thread in threading.enumerate()):
            if time.monotonic() > limit:
                self.work.violated(f"threads have not ended: {threading.enumerate()}")
                return
            if self.plan.shares_workers:
                gc.collect()  # a worker may have been about to let go of the last function
            time.sleep(0.001)

    def _check_closed(self, fn: Any) -> None:
        self._check_stats(fn.stats)
        if not _is_quiet(fn.stats):
            self.work.violated(f"something is left after the end:\n{fn.stats}")
        asked = Item(number_of(0, None), -1, self.plan)
        if self.plan.shape in {"arrays", "stream"}:
            return
        try:
            if self.plan.drive == "thread":
                fn(asked)
            else:
                asyncio.run(fn(asked))
        except ClosedError:
            return
        except BaseException as error:
            self.work.violated(f"a call after the end raises {error!r}")
        else:
            if not self.plan.options.get("cache"):
                self.work.violated("a call after the end is answered")

    # -- waiting ----------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until `condition` holds; not for longer than the limit once nothing else happens."""
        happened = None
        while not condition():
            before, happened = happened, (len(self.work.batches), sum(each.calls for each in self._callers))
            if happened != before:
                deadline = time.monotonic() + self._limit_s
            elif time.monotonic() > deadline:
                raise Hang(f"it does not come to its end: {what}")
            time.sleep(0.001)

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            self._until(lambda: not thread.is_alive(), f"{thread.name} {getattr(thread, '_target', '')}")

    def dump(self) -> str:
        """Return where everything stands: callers, counters, threads and tasks."""
        said = io.StringIO()
        said.write(describe(self._callers) + "\n")
        for fn in self._fns:
            with contextlib.suppress(Exception):
                said.write(f"{fn().stats}\n")
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            said.write(file.read())
        for loop in self._loops:
            with contextlib.suppress(Exception):
                for task in asyncio.all_tasks(loop):
                    task.print_stack(file=said)
        return said.getvalue()


def _is_quiet(stats: Any) -> bool:
    return not stats.queue_size and not stats.running_items and not stats.running
