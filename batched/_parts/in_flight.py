"""Items in flight: equal items that several calls ask for are computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeAlias

from batched._collate.own_copies import own_copy
from batched._core.batcher import Batcher
from batched._core.call import Call, note_of_item
from batched._core.keys import Key
from batched._core.tenants import Tenants, tenant_of
from batched._parts.store import UNKNOWN
from batched.errors import BatchError, is_error

_FAR = 64  # items, two batches of the default size: to run an item twice is worth no less
_TIMES = 8


class Watch:
    """The result of one key, once it has landed, for all callers that were asking the cache for it.

    A caller has its watch before it asks the cache, so a result that lands is found in the cache or here. The
    watch lasts as long as a caller has it: until its call is answered, and stored where callers do that.
    """

    result: Any = UNKNOWN


class Answers(Protocol):
    """A cache in front of the queue, as items in flight see it: it makes their calls, and their answers."""

    @property
    def items_are_keys(self) -> bool:
        """Whether an item that is no key any more is another item, too."""
        ...

    def miss_call(self, cached: CachedCall, places: list[int]) -> Call:
        """Return the call for the items of `cached` at `places`."""
        ...

    def land(self, key: Hashable, result: Any) -> Watch | None:
        """Show `result`, which has landed, to the callers that are asking the cache for `key`."""
        ...

    def store(self, landed: list[tuple[Hashable, Any, Watch | None]]) -> KeyboardInterrupt | None:
        """Store results that have landed, without a lock; return a Ctrl-C that came meanwhile."""
        ...


Landed: TypeAlias = tuple[Answers, Hashable, Any, Watch | None]
"""A result to be stored: the cache that it is for, the key, the result, and the callers that ask for it."""


def store(landed: list[Landed]) -> KeyboardInterrupt | None:
    """Store results, each in its cache, without a lock; return a Ctrl-C that came meanwhile."""
    interrupt: KeyboardInterrupt | None = None
    by_cache: dict[Answers, list[tuple[Hashable, Any, Watch | None]]] = {}
    for cache, key, result, watch in landed:
        by_cache.setdefault(cache, []).append((key, result, watch))
    for cache, theirs in by_cache.items():
        interrupt = cache.store(theirs) or interrupt
    return interrupt


class CachedCall(Call):
    """A call that a cache may answer: some results are known, some are in flight."""

    is_divided = True
    joins_any = False
    """Whether it waits for an equal item of a list, however much of that waits."""
    behind: CachedCall | None = None
    """Of the cache of a request: how that of the decorator is asked for the items that it has not."""
    places: Sequence[int] = ()
    """Where in this call the items of `behind` are."""
    to_keep: Sequence[list[tuple[Hashable, Any]]] = ()
    """What the runs that it waits for have for the cache of the decorator, if callers are to store that."""

    def __init__(
        self, uncached: Call, collator: Answers, keys: list[Hashable], values: list[list[Any]]
    ) -> None:
        self.begin(uncached.function, None, uncached.size, uncached.many, uncached.arrived)
        self.uncached = uncached
        """The call as it would be without a cache."""
        self.belong_with(uncached)
        self.collator = collator
        self.keys = keys
        """One per item; one in all for arrays."""
        self.values = values
        """What each layer knows of each item."""
        self.results = [UNKNOWN] * len(keys)
        self.missing = len(keys)
        self.hits = 0
        """Items answered without a run of their own."""
        self.to_store: list[tuple[Hashable, Any]] = []
        """The keys and results that this caller stores in the cache, where callers do that."""
        self.watches: dict[int, Watch] = {}
        """The watches of the items that had no result when the cache was asked, by place."""
        self.in_flight: InFlight | None = None
        self.joined: list[Item] = []
        """The items in flight that this call waits for."""
        self.failure: tuple[int, BaseException] | None = None
        """The first of its items, in its own order, that has failed so far: its place and its error."""

    def give(self, place: int, result: Any) -> None:
        """Give it one of its results, and with the last one its answer."""
        self.results[place] = result
        if self.missing == 1 and not self.many and self.error is None:
            self.results = self.results[0]  # set first: a late caller takes it once nothing is missing
        self.missing -= 1

    def know(self, place: int, result: Any) -> None:
        """Answer one item with a `result` that is known, unless there is no memory for a copy."""
        if result is UNKNOWN or not self.missing or self.results[place] is not UNKNOWN:
            return
        try:
            own = own_copy(result)
        except Exception:  # noqa: BLE001  then it is a miss
            return
        self.hits += 1 if self.many else self.size
        self.give(place, own)

    def take_landed(self) -> None:
        """Take the results that have landed since the cache was asked."""
        for place, watch in self.watches.items():
            self.know(place, watch.result)

    def note_failure(self, place: int, error: BaseException, *, is_known: bool) -> None:
        """Note that the item at `place` has ended with `error`; `is_known`: that very item has failed."""
        if self.failure is None or place < self.failure[0]:
            self.failure = place, error
            self.note = note_of_item(place, self.size) if is_known and self.many else None

    @property
    def may_fail_earlier(self) -> bool:
        """Whether an item before the first that has failed has no answer yet."""
        earlier = () if self.failure is None else self.results[: self.failure[0]]
        return any(result is UNKNOWN for result in earlier)

    @property
    def unanswered(self) -> int:
        """The number of items that have no result yet."""
        return self.missing if self.many else self.size * self.missing

    @property
    def unstarted(self) -> int:
        """How many items wait in the queue for this call."""
        return sum([miss.call.unstarted for miss in self.misses if miss.call is not None])

    @property
    def misses(self) -> set[Miss]:
        """What has been queued, by it or others, for the items that it waits for.

        Each once: what concerns a long list takes as long as the list, and must not be done for each item.
        """
        return {item.miss for item in self.joined if item.miss is not None}

    def forget_watches(self) -> None:
        """Let go of results that land: the caller has its answer, and an error may keep this call alive."""
        self.watches.clear()

    def note_context(self) -> None:
        """Note the context for the miss call, which runs in place of this call."""
        self.uncached.note_context()

    def enter(self, batcher: Batcher) -> Sequence[Call]:
        """Join the items in flight; return the calls to queue for the other items."""
        if batcher.in_flight is None:
            batcher.in_flight = InFlight(batcher)
        self.in_flight = in_flight = batcher.in_flight
        entered: Sequence[Call] = in_flight.enter(self)
        return entered

    def extend(self, deadline: float | None) -> None:
        """Extend the deadline to that of a call that has joined, also of what runs in the place of this."""
        Call.extend(self, deadline)
        for miss in self.misses:
            miss.extend(deadline)

    def leave(self) -> Sequence[Call]:
        """Wait for nothing any more; return the miss calls that no call waits for."""
        if self.in_flight is None:  # it has not been queued
            return ()
        self.missing = 0
        return self.in_flight.leave(self)


class Item:
    """One item in flight, and the calls that wait for it, each with the places that it has there.

    By call: where thousands wait for one item, each of them may leave, and all at once if they are late.
    """

    __slots__ = ("cache", "key", "miss", "waiting")

    def __init__(self, cache: Answers, key: Hashable) -> None:
        self.cache = cache
        self.key = key
        self.miss: Miss | None = None
        self.waiting: dict[CachedCall, list[int]] = {}


class Miss:
    """A call for items that no cache knows, on behalf of all calls that wait for any of them."""

    __slots__ = ("_in_flight", "call", "items")

    def __init__(self, in_flight: InFlight, call: Call, items: list[Item]) -> None:
        self._in_flight = in_flight
        self.call: Call | None = call
        self.items = items

    @property
    def is_shared(self) -> bool:
        """Whether several callers wait for it."""
        calls = {call for item in self.items for call in item.waiting}
        # Of the cache of a request, one of these may be in the place of others.
        return len(calls) > 1 or any(call.is_shared for call in calls)

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for it."""
        return any(item.waiting for item in self.items)

    @property
    def has_expired(self) -> bool:
        """Whether no caller waits for it any more, because of a deadline."""
        is_late = False
        for item in self.items:
            for call in item.waiting:
                if call.has_expired:
                    is_late = True
                elif call.left is None:
                    return False
        return is_late

    def abandon(self, error: BaseException) -> Sequence[Call]:
        """End the calls that wait for any of its items, with `error` if they have no answer; return them."""
        calls = list(dict.fromkeys(call for item in self.items for call in item.waiting))
        for call in calls:
            if call.missing:
                call.fail(error)
        for item in self.release():
            self._in_flight.forget(item)
        ended: dict[Call, None] = {}
        for call in calls:  # of the cache of a request, it may be in the place of others itself
            ended |= dict.fromkeys((call,) if call.parent is None else call.parent.abandon(error))
        return [*ended]

    def release(self) -> list[Item]:
        """Forget the call and the items, which are no longer in flight; return the items."""
        self.call = None  # the call refers back to this object
        items, self.items = self.items, []
        for item in items:
            item.waiting = {}  # these calls refer back to it
        return items

    def extend(self, deadline: float | None) -> None:
        """Extend the deadline of the miss call to that of a call that has joined."""
        if self.call is not None:
            self.call.extend(deadline)

    def take(self, part: Call) -> tuple[Sequence[Call], Sequence[Call]]:
        """Take the results of the miss call: return the calls that are done, and the calls to drop."""
        return self._in_flight.land(self, part)


def _fault_of(key: Hashable) -> BatchError | None:
    """Return the error of callers that wait for an item of which the `key` has changed."""
    return key.fault() if type(key) is Key else None


def _own_result(result: Any) -> Any:
    """Return a copy of a result, for one caller; the error, if there is no memory for it."""
    try:
        return own_copy(result)
    except Exception as error:  # noqa: BLE001  for this caller alone
        return error


def _is_far_behind(item: Item, call: CachedCall, tenants: Tenants | None) -> bool:
    """Whether `call` is answered sooner with a run of its own: `item` waits, and lands late.

    It lands with all of its list, of which much may wait; of a bulk call it waits for calls that an
    interactive one goes ahead of; and of another tenant for what waits of that one.
    """
    run = None if item.miss is None else item.miss.call
    if run is None or call.bulk or call.joins_any:
        return False
    ahead = run.unstarted
    least = 0 if run.bulk and call.bulk is False else max(_FAR, _TIMES * call.size)
    if ahead and tenants is not None and tenant_of(run) != tenant_of(call) and tenants.items_of(run) > least:
        return True
    return ahead > least


class InFlight:
    """The items in flight of one batcher. Used with its lock, so nothing here calls the user's cache."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._items: dict[tuple[Answers, Hashable], Item] = {}
        self.landing: list[Call] = []
        """Calls that are done, until the batcher has noted that."""

    def enter(self, call: CachedCall) -> Sequence[Call]:
        """Have `call` join the items in flight; return what is to be queued for the others."""
        cache = call.collator
        call.take_landed()
        if not call.missing:
            return ()
        missed: dict[int, Item] = {}
        tenants = self._batcher.queue.tenants
        for place, key in enumerate(call.keys):
            if call.results[place] is not UNKNOWN:
                continue
            item = self._items.get((cache, key))
            if item is None or _is_far_behind(item, call, tenants):
                item = missed[place] = Item(cache, key)
            else:
                call.hits += 1 if call.many else call.size
            # Last of all others can find it: `leave` is to find it first, as a Ctrl-C may come.
            call.joined.append(item)
            item.waiting.setdefault(call, []).append(place)
            self._items[cache, key] = item
        for miss in call.misses:
            miss.extend(call.deadline)
        if not missed:
            return ()
        run = cache.miss_call(call, [*missed])
        run.parent = miss = Miss(self, run, [*missed.values()])
        for item in miss.items:
            item.miss = miss
        queued = run.enter(self._batcher)
        call.hits += run.hits
        if not run.missing:  # behind the cache of a request, another one has just got the results
            self.land(miss, run)
            self.landing.clear()
        return queued

    def land(self, miss: Miss, run: Call) -> tuple[Sequence[Call], Sequence[Call]]:  # noqa: C901
        """Hand the results of `run`, which is done, to the calls that wait for them."""
        done: list[CachedCall] = []
        unwanted: list[Call] = []
        told: dict[CachedCall, None] = {}
        items = miss.items
        miss.call = None  # not wanted any more; the items stay to the end, so that no error loses their calls
        results = run.results if run.many else [run.results]
        unclear = () if run.error is not None else _errors_of_several(results)
        is_own = getattr(run, "owns_error", False) and not miss.is_shared
        for at, item in enumerate(items):
            self.forget(item)
            outcome = results[at] if run.error is None else run.error
            fault = _fault_of(item.key)
            to_store = fault is None and not is_error(outcome)
            if to_store:
                watch = item.cache.land(item.key, outcome) if item.waiting else None
                self._batcher.effects.landed.append((item.cache, item.key, outcome, watch))
            for call, place in [(call, place) for call, places in item.waiting.items() for place in places]:
                if not call.missing:
                    continue
                told[call] = None
                # Where the key is the item, that may be another by now.
                result = fault if fault is not None and item.cache.items_are_keys else outcome
                if call.parent is None:  # else each call of the request that it runs for has a key of its own
                    result = _fault_of(call.keys[place]) or result
                result = _own_result(result)
                if is_error(result):
                    call.owns_error = is_own and getattr(call, "owns_error", True)
                if is_error(result) and (run.error is not None or not call.keep_errors):
                    # Of what is late, or was not run, no item has failed.
                    is_known = run.error is None and id(result) not in unclear
                    call.note_failure(place, result, is_known=is_known)
                    continue
                if to_store:  # the first caller that has not left stores it
                    call.to_store.append((item.key, outcome))
                    to_store = False
                call.give(place, result)
                if not call.missing:
                    self.landing.append(call)
                    done.append(call)
        for call in told:
            if call.failure is not None and (run.error is not None or not call.may_fail_earlier):
                call.left = run.left
                self.landing.append(call)  # its items are about to forget it
                call.fail(call.failure[1])
                done.append(call)
                unwanted += call.leave()
        miss.release()
        return done, unwanted

    def leave(self, call: CachedCall) -> Sequence[Call]:
        """Have `call` wait for no item; return the miss calls that no call waits for any more."""
        joined, call.joined = call.joined, []
        misses: dict[Miss, None] = {}
        for item in joined:
            item.waiting.pop(call, None)
            if item.miss is not None:
                misses[item.miss] = None
            elif not item.waiting:  # never queued, because a later item of the call was refused
                self.forget(item)
        unwanted: list[Call] = []
        for miss in misses:
            if miss.call is not None and not miss.is_wanted:
                unwanted.append(miss.call)
                for item in miss.release():
                    self.forget(item)
        return unwanted

    def forget(self, item: Item) -> None:
        """Note that `item` is in flight no more."""
        if self._items.get((item.cache, item.key)) is item:
            del self._items[item.cache, item.key]


def _errors_of_several(results: list[Any]) -> set[int]:
    """Return the ids of the errors that several items have: it is not known which of these has failed."""
    times = Counter(id(result) for result in results if is_error(result))
    return {error for error, count in times.items() if count > 1}
