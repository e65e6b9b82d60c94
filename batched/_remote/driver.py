"""A function of another process, for its callers here: a driver without a batcher."""

from __future__ import annotations

import _thread
import asyncio
import sys
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from time import sleep
from typing import Any, NoReturn, Protocol

from batched._clock import monotonic
from batched._core.call import Call, Slice
from batched._core.options import Options, StreamOptions
from batched._core.stats import Stats
from batched._drivers import arrivals
from batched._drivers.alarms import watch
from batched._drivers.blocking import LoopWarning
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.driver import Driver
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.semaphores import new_semaphore
from batched._drivers.thread import wait_for
from batched._drivers.wakeups import wake_callers
from batched._remote.addresses import Address
from batched._remote.frames import Kind
from batched._remote.greeting import FOLLOWED, Described
from batched._remote.link import Link, Terms, WireTimes, stands_still
from batched._remote.requests import NO_TENANT, RemoteCollator, Request, request, tenant_from
from batched.errors import ClosedError, DisconnectedError

_LOOK_S = 0.005  # how often the end of a function here looks whether calls are left


class Links(Protocol):
    """The connections of a client."""

    terms: Terms
    fair_by: Callable[[], Any] | None
    most_bytes: float
    """The most bytes that the server takes at once."""

    def send(self, call: Call, driver: RemoteDriver, request: Request) -> object:
        """Send `call` on the connection of its caller, which becomes its tenant."""
        ...

    def pending(self, driver: RemoteDriver) -> list[Call]:
        """Return the calls of `driver` that have no answer yet."""
        ...

    def reads_here(self) -> bool:
        """Whether this is the thread that reads the answers of threads."""
        ...


class RemoteDriver(Driver):
    """The way from the callers of one function to its server."""

    def __init__(self, name: str, links: Links) -> None:
        # Until the server has said more, a map reads few elements ahead, and the function may stream.
        super().__init__(StreamOptions(batch_size=2, name=name), _no_queue, RemoteCollator(), name)  # type: ignore[arg-type]
        self.wire: WireTimes = WireTimes()
        self.warn_on_loop: LoopWarning = LoopWarning(name)
        self._links = links

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.deadline_watch: DeadlineWatch = DeadlineWatch(self.name, _drop_late)

    def __del__(self, _is_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "deadline_watch") and not _is_exit():  # then modules are half gone
            self.deadline_watch.stop()

    # -- calls --------------------------------------------------------------------------------------------

    def describe(self, known: Described) -> None:
        """Note what the server says of the function."""
        collator: Any = self.collator
        collator.chunk_size = 1 if known.maps_singly else None
        collator.default_deadline_ms = known.default_deadline_ms
        kind = StreamOptions if known.streams else Options
        self.options: Options = kind(name=self.name, **{name: getattr(known, name) for name in FOLLOWED})

    def check(self) -> None:
        """Raise if there are no calls any more."""
        if self.closed:
            raise self.closed_error()

    def closed_error(self) -> ClosedError:
        """Return what calls raise after the end."""
        return ClosedError(f"{self.name} was shut down in this process and takes no more calls here")

    def push(self, call: Call, waits: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002  a map waits anyway
        """Send `call`, which has its waiter."""
        self.check()
        links = self._links
        try:
            tenant = NO_TENANT if links.fair_by is None else tenant_from(links.fair_by, self.name)
            links.send(call, self, request(links.terms.codec, call, tenant, links.most_bytes))
        except BaseException:
            self.cancel(call)
            raise

    def post(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Send `call`, for a thread that will `collect` it."""
        call.waits_at = None
        call.waiter = waiter = _thread.allocate_lock()
        waiter.acquire()
        self.push(call, waits)

    def post_async(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Send `call`, for the running task, which then waits until it is answered or late."""
        call.waits_at = loop = get_running_loop()
        call._loop = loop  # noqa: SLF001  tasks look for it by this name
        self.push(call, waits)
        if call.deadline is not None:
            watch(call, loop)

    def push_future(self, call: Call) -> None:
        """Send `call`, for a thread that takes its future."""
        self.push(call)  # not the same function by two names: `batched.deadline` replaces `push`

    def send_again(self, call: Call, request: Request) -> None:
        """Send `call` on another connection than the one that has ended."""
        self._links.send(call, self, request)

    collect = wait_for

    def _drop(self, call: Call, _is_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if _is_exit():  # a stream is collected with the interpreter: modules are half gone
            return
        link: Link | None = getattr(call, "tenant", None)
        if link is not None:
            link.cancel(call, is_late=call.left == "expired")

    # -- what is asked of the server ----------------------------------------------------------------------

    def ask(self, question: str) -> Any:
        """Return the answer of the server to a question about the function.

        Raises:
            DisconnectedError: There is no server, or it stands still.

        """
        now = monotonic()
        links = self._links
        call = Call().begin(None, None, 1, False, now)  # noqa: FBT003
        call.deadline = now + links.terms.still_s
        call.waits_at = None
        call.waiter = new_semaphore()
        links.send(call, self, Request(Kind.ASK, 0, None, question.encode(), []))
        try:
            self.collect(call)
        except TimeoutError:
            if call.left is None:  # the server has said so
                raise
            what = f"said the {question.split(maxsplit=1)[0]} of {self.name}"
            raise DisconnectedError(stands_still(links.terms.address, links.terms.still_s, what)) from None
        return call.results

    @property
    def address(self) -> Address:
        """Where the server listens."""
        return self._links.terms.address

    @property
    def stats(self) -> Stats:
        """The figures of the function in its server, of all clients."""
        found: Stats = self.ask("stats")
        return found

    def expected_wait_s(self, items: int) -> float | None:
        """Return how long a call of `items` would wait for its answer; None if that is not known."""
        found: float | None = self.ask(f"expected_wait_ms {items}")
        return None if found is None else found / 1000

    def configure(self, changes: Mapping[str, Any]) -> NoReturn:
        """Refuse: a client may not change what others use."""
        raise TypeError(
            f"{self.name} is shared by all clients of its server, so it is configured there: call configure "
            f"in the server, got {sorted(changes)}"
        )

    def warm_up(self, new_slices: Callable[[], list[Slice]], *, in_task: bool) -> NoReturn:  # noqa: ARG002
        """Refuse: the server does it."""
        raise TypeError(
            f"{self.name} is warmed up in its server: call {self.name}.warm_up there before it is served"
        )

    # -- the end ------------------------------------------------------------------------------------------

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls here; the function in its server goes on."""
        if wait and self._links.reads_here():
            raise RuntimeError(
                f"{self.name} would wait for ever: this is the thread that reads its answers, in a callback "
                f"of a future; use shutdown(wait=False) here"
            )
        self._close()
        if cancel_futures:
            self.withdraw(self._links.pending(self), CancelledError(f"{self.name} was shut down"))
        if wait:
            loop = running_loop_or_none()
            while any(loop is None or call.waits_at is not loop for call in self._awaited()):
                sleep(_LOOK_S)
            self.deadline_watch.stop()

    def withdraw(self, calls: list[Call], error: BaseException) -> None:
        """Answer those of `calls` that have no answer yet with `error`: they are not wanted any more."""
        unanswered = [call for call in calls if call.missing]
        try:
            self._end_calls(unanswered, error)
        except BaseException:  # Ctrl-C: the connection may have forgotten the calls
            self._end_calls(unanswered, error)
            raise

    def _end_calls(self, calls: list[Call], error: BaseException) -> None:
        for call in calls:
            self.cancel(call)
            call.waiting = 0
            call.fail(error)
        wake_callers(calls, self.name)

    async def aclose(self) -> None:
        """Take no more calls here, and wait for the answers of those that were sent."""
        self._close()
        while self._awaited():  # noqa: ASYNC110  answers come on any thread
            await asyncio.sleep(_LOOK_S)
        self.deadline_watch.stop()

    def _awaited(self) -> list[Call]:
        """Return the calls without an answer, but those of loops that have stopped: they read none."""
        return [
            call
            for call in self._links.pending(self)
            if not isinstance(call.waits_at, asyncio.AbstractEventLoop) or call.waits_at.is_running()
        ]


def _no_queue(*_: object) -> NoReturn:
    raise TypeError("a client has no queue")


def _drop_late(calls: list[Call]) -> None:
    """End futures that are late."""
    for call in calls:
        if (link := getattr(call, "tenant", None)) is not None:
            link.expire(call)


arrivals.register(RemoteDriver, "push")  # for `batched.deadline`
