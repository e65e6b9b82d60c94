"""A function in its server: it runs the calls of clients as its own."""

from __future__ import annotations

from asyncio import CancelledError, Task, create_task, sleep
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from batched._api.function import DecoratedFunction, answer_with_cache
from batched._clock import monotonic
from batched._core.call import Call, MapFlow
from batched._core.keys import key_of
from batched._core.options import NO_OPTIONS, Options
from batched._drivers.thread import ThreadDriver
from batched._drivers.wakeups import Outbox, own_error, own_errors
from batched._parts.layers import GIVEN_TENANT, takes_item
from batched._remote.frames import Flag, FrameError, Kind
from batched._remote.function import RemoteFunction
from batched._remote.greeting import FOLLOWED, Described
from batched._remote.requests import NO_TENANT, Wanted
from batched._remote.values import Unreadable

Why: TypeAlias = Literal["cancelled", "expired"]
"""Why a caller has left."""


def check_served(name: str, function: DecoratedFunction[Any]) -> None:
    """Raise if a function would not do for clients what it does in its own process."""
    if isinstance(function, RemoteFunction):
        driver: Any = function._driver  # noqa: SLF001
        raise TypeError(f"{name} runs in another server, {driver.address}: connect to that")
    group_by = function._shared.settings.group_by  # noqa: SLF001
    if group_by is not None and not takes_item(group_by):
        raise ValueError(
            f"{name}: group_by takes no item, so it reads the context of the caller, which stays in the "
            f"client: items of all keys would share batches. Make the key a parameter of {name}, as in "
            f"group_by=lambda text, tenant: tenant"
        )


class Served:
    """One function, for the clients of a server, which are tenants of its batcher.

    Calls that this process makes of the function share the batches of its clients. A `fair_by` of the
    function that takes an item is asked here, and says more than which client calls. What a client says
    itself, by a `fair_by` of its own, comes before both.
    """

    def __init__(
        self, name: str, function: DecoratedFunction[Any], when_changed: Callable[[], object]
    ) -> None:
        self.name = name
        self.follow: Callable[[], object] = when_changed
        """Called when options have changed."""
        self.function = function.with_call_options(NO_OPTIONS)
        self.driver: Any = self.function._driver  # noqa: SLF001
        self.driver.take_turns()
        followers: Any = vars(self.driver).setdefault("followers", WeakSet())
        followers.add(self)
        settings: Options = self.driver.options
        self._asks_item = settings.fair_by is not None and takes_item(settings.fair_by)
        self._gives = settings.fair_by is not None or settings.cache is not None
        self._callers_context = Context()  # those of callers stay in their processes
        self._context = Context()  # of this server alone: two threads cannot be in one at once
        shared = self.function._shared  # noqa: SLF001
        self.callers_ask: bool = shared.callers_ask
        self._read = shared.read
        self._chunk = shared.collator.chunk
        default_ms = self.driver.options.default_deadline_ms
        self._default_s = None if default_ms is None else default_ms / 1000
        self.drop: Callable[[Call, Why], object] = self.driver._leave  # noqa: SLF001
        self._has_worker = isinstance(self.driver, ThreadDriver)
        self.together: frozenset[int] = frozenset()
        """The flags of calls that can be queued together."""
        if self._has_worker and not self._gives:
            timed = Flag.ONE | Flag.DEADLINE
            # A call that has a deadline of which its client does not know yet is watched here.
            self.together = frozenset({timed} if default_ms is not None else {Flag.ONE, timed})

    def described(self) -> Described:
        """Return what clients need to know."""
        options = self.driver.options
        return Described(
            name=self.name,
            streams=options.streams,
            maps_singly=self.driver.collator.chunk_size == 1 or options.default_deadline_ms is not None,
            default_deadline_ms=options.default_deadline_ms,
            **{name: getattr(options, name) for name in FOLLOWED},
        )

    def call(self, wanted: Wanted, value: Any, client: str) -> Call:
        """Return the call that a client wants, not queued yet; raises what its arguments raise."""
        now = monotonic()
        tenant = wanted.tenant
        if tenant is not NO_TENANT:
            _check_tenant(tenant)
        elif not self._asks_item:
            tenant = client
        if not self._gives:
            call = self._call(wanted.flags, value, now)
            call.tenant = tenant
            if call.is_divided:
                for each in call.parts:
                    each.tenant = tenant
        elif tenant is NO_TENANT:
            call = self._call(wanted.flags, value, now)
        else:
            given = GIVEN_TENANT.set((key_of(tenant, f"{self.name}: fair_by"),))
            try:
                call = self._call(wanted.flags, value, now)
            finally:
                GIVEN_TENANT.reset(given)
        if wanted.flags & _SET:
            self._set(call, wanted, now)
        return call

    def _call(self, flags: int, value: Any, now: float) -> Call:
        if flags & Flag.ELEMENTS:
            if type(value) is not list:
                raise FrameError(f"elements of a map are a list, not {type(value).__name__}")
            if self.driver.options.streams:
                self.function._open_map()  # noqa: SLF001  refuses
            call: Call = self._chunk(self.function, value, now)
        elif flags & Flag.STREAM:
            args, named = value
            call = self.function._ask_one(args, named)  # noqa: SLF001
        elif flags & Flag.ONE:
            call = self._read(self.function, (value,), {}, now)
        else:
            args, named = value
            call = self._read(self.function, args, named, now)
        return call

    def _set(self, call: Call, wanted: Wanted, now: float) -> None:
        """Give a call the options of its client."""
        flags = wanted.flags
        flow = MapFlow()  # of this call alone: which calls are of one map, the client does not say
        for part in (call, *call.parts):
            part.keep_errors = bool(flags & Flag.KEEP_ERRORS)
            if wanted.left_s is not None:
                _set_deadline(part, wanted.left_s, wanted.allowed_s, now)
            elif self._default_s is not None and flags & Flag.ELEMENTS:
                part.deadline = now + self._default_s
            if flags & _PRIORITY:
                part.bulk = bool(flags & Flag.BULK)
            elif flags & Flag.ELEMENTS:
                part.bulk = True
            if flags & Flag.ELEMENTS:
                part.flow = flow

    def plain(
        self, read: list[tuple[Any, ...]], values: list[Any], client: str, answers: Outbox
    ) -> list[Call | BaseException]:
        """Return the calls of a frame for `post_all`, from its rows; errors for those that are refused."""
        now, read_one, function, context = monotonic(), self._read, self.function, self._callers_context
        found: list[Call | BaseException] = []
        for (_, flags, left_s, allowed_s), value in zip(read, values, strict=True):
            try:
                call: Call = read_one(function, (value,), {}, now)
            except BaseException as error:  # noqa: BLE001  of the user's code
                found.append(error)
            else:
                call.tenant = client
                call.context = context
                call.waits_at = answers
                if flags & Flag.DEADLINE:
                    _set_deadline(call, left_s, allowed_s, now)
                found.append(call)
        return found

    def watches(self, call: Call, wanted: Wanted) -> bool:
        """Whether the deadline of `call` is watched here: that of a future, or one that only this knows.

        Of others, clients say when they are late.
        """
        return call.deadline is not None and (wanted.kind == Kind.LATE or wanted.left_s is None)

    def post(self, call: Call, wanted: Wanted, answers: Outbox) -> None:
        """Queue `call`, and have `answers` release it when it has its answer."""
        driver = self.driver
        waits = bool(wanted.flags & Flag.ELEMENTS)
        watches = self.watches(call, wanted)
        if self._has_worker and (not watches or wanted.kind == Kind.LATE):
            call.context = self._callers_context
            call.waits_at = answers
            driver.push(call, waits)
            if watches:
                driver.deadline_watch.add(call, call.deadline)
        else:  # it is woken at its deadline, too
            driver.post_async(call, waits)
            call.add_done_callback(lambda _: answers.release([call]), context=self._context)

    def post_all(self, calls: list[Call]) -> Iterator[tuple[Call, BaseException]]:
        """Queue calls together; yield those that are refused, with their errors."""
        # One with a deadline is refused if it would be late behind those before it.
        are_timed = [call.deadline for call in calls].count(None) < len(calls)
        if are_timed or not self.driver.push_all(calls):
            for call in calls:
                try:
                    self.driver.push(call)
                except BaseException as error:  # noqa: BLE001
                    yield call, error

    @property
    def is_idle(self) -> bool:
        """Whether no call is on its way to a worker."""
        return self._has_worker and not self.driver.batcher.arriving

    def post_for_worker(self, call: Call, when_answered: Callable[[], object]) -> None:
        """Queue `call`, and have `when_answered` called by the worker when it has its answer."""
        call.context = self._callers_context
        call.waits_at = None
        call.waiter = SimpleNamespace(release=when_answered)  # as the lock of a thread that waits
        self.driver.push(call)

    def at_once(self, call: Call) -> Any:
        """Return the answer of a call of which nothing is to be queued."""
        return _listed(call, self.function._at_once(self.driver, call))  # noqa: SLF001

    def answer(self, call: Call) -> Any:
        """Return the answer of `call`, which has been woken and has no error."""
        return _listed(call, own_errors(call)) if call.keep_errors else call.results

    def error(self, call: Call) -> BaseException | None:
        """Return the error of `call`, which has been woken: also one that only threads are to be told."""
        if call.missing:
            try:
                self.driver.raise_error(call)
            except TimeoutError as late:
                return late.with_traceback(None)
        return None if call.error is None else own_error(call, self.driver.name)

    async def one_by_one(self, wanted: Wanted, value: list[Any], client: str) -> list[Any]:
        """Return the answers of elements of a map, each a call of its own, with errors in their places."""
        came = monotonic()
        tasks: list[Task[Any]] = []
        try:
            for at in range(0, len(value), _AT_ONCE):
                if wanted.left_s is not None:
                    came, waited_s = monotonic(), monotonic() - came
                    wanted = replace(wanted, left_s=wanted.left_s - waited_s)
                few = value[at : at + _AT_ONCE]
                tasks += [create_task(self._one(wanted, element, client)) for element in few]
                await sleep(0)
            return [await each for each in tasks]
        except CancelledError as left:
            for each in tasks:
                each.cancel(*left.args)
            raise

    async def _one(self, wanted: Wanted, element: Any, client: str) -> Any:
        """Return the answer of one element, or the error that it is refused or answered with."""
        if isinstance(element, Unreadable):
            return element.error
        try:
            call = self.call(wanted, [element], client)
            if self.callers_ask:
                return (await self.with_cache(call))[0]
            if not call.missing:
                return self.at_once(call)[0]
            self.driver.post_async(call, waits=True)
            try:
                await call.wait()
            except CancelledError as left:
                self.drop(call, "expired" if left.args == ("expired",) else "cancelled")
                raise
            error = self.error(call)
            return self.answer(call)[0] if error is None else error
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  of a callback of the user's, say
            return error

    async def with_cache(self, call: Call) -> Any:
        """Return the answer of `call`, where the callers ask an asynchronous cache; raise its error."""
        await answer_with_cache(self.driver, call, self.name, waits=hasattr(call, "flow"))  # it is of a map
        return self.answer(call)


_AT_ONCE = 32
"""Elements that are queued in one turn of the event loop, for which other clients wait."""


def _check_tenant(tenant: Any) -> None:
    """Raise if no client of this library names such a tenant: it would hurt the calls of others."""
    try:
        hash(tenant)
    except TypeError as error:
        raise FrameError(f"a tenant has a hash: {error}") from error


_MOST_S = 604_801.0  # a week, as options allow


def _set_deadline(call: Call, left_s: float, allowed_s: float, now: float) -> None:
    """Give a call the deadline of its client; infinite for none."""
    if left_s == inf:
        call.deadline = None
    else:
        # In this order, which reads NaN as the first of both.
        call.deadline = now + min(_MOST_S, max(-_MOST_S, left_s))
        call.arrived = now - min(_MOST_S, max(0.0, allowed_s - left_s))


def _listed(call: Call, answer: Any) -> Any:
    """Return the answer as its client expects it: of elements of a map, a list, also for one of arrays."""
    return [answer] if hasattr(call, "flow") and not call.many else answer


_PRIORITY = Flag.BULK | Flag.INTERACTIVE
_SET = Flag.DEADLINE | Flag.BULK | Flag.INTERACTIVE | Flag.KEEP_ERRORS | Flag.ELEMENTS
