"""`cache`: a layer in front of the queue. Hits skip the queue; equal items in flight are computed once.

A caller waits for a `Lookup`. Its items that are neither in the cache nor in flight are queued as one call,
the miss call. That belongs to the layer: it is cancelled when no lookup waits for any of its items.

The cache is asked before a lookup is admitted, and told before it is answered, each time without the lock of
the batcher. What lands in between is found in a `Watch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from batched._collate.libraries import library_of
from batched._core.call import Call
from batched._parts.group_by import Family, called
from batched._parts.store import UNKNOWN, AsynchronousCacheError, Faults, Store, at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from batched._core.call import Wrapper
    from batched._parts.group_by import Groupable, GroupingCollator
    from batched._parts.length_order import MeasuringCollator
    from batched._parts.store import Guard

__all__ = ["CachingCollator", "Flights", "Lookup"]


class Lookup(Call):
    """The call that a caller waits for: some results are known, some are in flight."""

    __slots__ = ("collator", "flights", "group_keys", "hits", "keys", "to_store", "uncached", "watches")

    uncached: Call
    """The call as it would be without a cache."""
    collator: CachingCollator
    keys: list[Hashable]
    """One per item; one in all for arrays."""
    group_keys: list[Hashable] | None
    hits: int
    """Items answered without a run of their own."""
    to_store: list[tuple[Hashable, Any]]
    """The keys and results that this caller stores in the cache, where callers do that."""
    flights: list[Flight]
    watches: dict[int, Watch]
    """By place, for the items that were not known when the cache was about to be asked."""

    @property
    def unanswered(self) -> int:
        """The number of items that have no result yet."""
        return self.missing if self.many else self.size * self.missing

    def note_context(self) -> None:
        """Note the context for the miss call, which runs in place of this call."""
        self.uncached.note_context()


class Flight:
    """One item in flight, and the lookups that wait for it."""

    __slots__ = ("key", "miss_call", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.miss_call: Call | None = None
        self.waiting: list[tuple[Lookup, int]] = []


class Watch:
    """The result of one key, once it has landed, for all callers that were asking the cache for it.

    A caller has its watch before it asks the cache, so a result that lands is found in the cache or here. The
    watch lasts as long as a caller has it: until its call is answered, and stored where callers do that.
    """

    result: Any = UNKNOWN


class Flights:
    """The items in flight. Used with the lock of the batcher, so nothing here calls the user's cache."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._miss_calls: dict[Call, list[Flight]] = {}

    def enter(self, lookup: Lookup) -> Call | None:
        """Join the items in flight; return the miss call for the others, None if there are none."""
        lookup.collator.take_landed(lookup)
        if not lookup.missing:
            return None
        missed: list[tuple[int, Flight]] = []
        joined: list[Flight] = []
        for place, key in enumerate(lookup.keys):
            if lookup.results[place] is not UNKNOWN:
                continue
            flight = self._flights.get(key)
            if flight is None or _is_late(flight.miss_call):
                self._flights[key] = flight = Flight(key)
                missed.append((place, flight))
            else:
                joined.append(flight)
            flight.waiting.append((lookup, place))
            lookup.flights.append(flight)
        lookup.hits += len(joined) if lookup.many else len(joined) * lookup.size
        for flight in joined:
            if flight.miss_call is not None:
                _extend(flight.miss_call, lookup.deadline)
        if not missed:
            return None
        miss_call = lookup.collator.miss_call(lookup, [place for place, _ in missed])
        flights = [flight for _, flight in missed]
        for flight in flights:
            flight.miss_call = miss_call
        self._miss_calls[miss_call] = flights
        return miss_call

    def results(self, miss_call: Call) -> list[tuple[Hashable, Any]]:
        """Return the keys and results of `miss_call`, which is done, without its errors."""
        flights = self._miss_calls.get(miss_call)
        if flights is None or miss_call.error is not None:
            return []
        found = zip(flights, _found(miss_call), strict=True)
        return [(flight.key, result) for flight, result in found if not isinstance(result, BaseException)]

    def complete(self, calls: list[Call]) -> tuple[list[Call], list[Call]]:
        """Return the calls to answer now that `calls` are done, and miss calls that no lookup waits for."""
        answered: list[Call] = []
        unwanted: list[Call] = []
        for call in calls:
            flights = self._miss_calls.pop(call, None)
            if flights is None:  # the last lookup that waited has left meanwhile
                continue
            results = [call.error] * len(flights) if call.error is not None else _found(call)
            for flight, result in zip(flights, results, strict=True):
                if self._flights.get(flight.key) is flight:
                    del self._flights[flight.key]
                has_storer = failed = isinstance(result, BaseException)
                for lookup, place in flight.waiting:
                    if not lookup.missing:
                        continue
                    if failed and (call.error is not None or not lookup.keep_errors):
                        lookup.left = call.left
                        lookup.fail(result)
                        unwanted += self.leave(lookup)
                    else:
                        if not has_storer:  # one of the callers that have not left
                            lookup.to_store.append((flight.key, result))
                            has_storer = True
                        lookup.collator.give(lookup, place, result)
                    if not lookup.missing:
                        answered.append(lookup)
        return answered, unwanted

    def leave(self, lookup: Lookup) -> list[Call]:
        """Have `lookup` wait for nothing; return the miss calls that no lookup waits for any more."""
        lookup.missing = 0
        miss_calls = []
        for flight in lookup.flights:
            flight.waiting = [(other, place) for other, place in flight.waiting if other is not lookup]
            miss_call = flight.miss_call
            if miss_call is None:  # it was never queued, as something was wrong with a later item
                if not flight.waiting:
                    self._flights.pop(flight.key, None)
            elif miss_call not in miss_calls and not any(
                other.waiting for other in self._miss_calls.get(miss_call, ())
            ):
                miss_calls.append(miss_call)
        lookup.flights = []
        for miss_call in miss_calls:
            for flight in self._miss_calls.pop(miss_call, ()):
                if self._flights.get(flight.key) is flight:
                    del self._flights[flight.key]
        return miss_calls


class CachingCollator:
    """Another collator whose calls are looked up first."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        collator: Groupable,
        grouping: GroupingCollator | None,
        measuring: MeasuringCollator | None,
        cache: Any,
        cache_key: Callable[..., Hashable] | None,
        guard: Guard,
        name: str,
        *,
        bound: bool,
    ) -> None:
        self._collator = collator
        self._grouping = grouping
        self._measuring = measuring
        self._guard = guard
        self._store = Store(cache, guard, name)
        self.callers_ask = False  # whether callers, not the driver, tell the cache: then they may await it
        self._watches: WeakValueDictionary[Hashable, Watch] = WeakValueDictionary()
        self._cache_key = cache_key
        self._name = name
        # Instances give different answers, unless `cache_key` says otherwise; and a cache may outlive them.
        self._whose = uuid4().hex if bound and cache_key is None else None
        self.chunk_size = collator.chunk_size
        batches = measuring or collator
        self.collate = batches.collate
        self.split = batches.split
        self.place = batches.place

    def let_callers_ask(self) -> None:
        """Have callers, which must be tasks, ask and tell a cache that is no mapping: they can await it."""
        self.callers_ask = self._store.awaits = not self._store.is_mapping

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the lookup that the arguments mean."""
        return self._lookup(self._collator.read(function, args, named, now))

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the lookup of one item."""
        return self._lookup(self._collator.one(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return the lookup of some elements of a `map`."""
        return self._lookup(self._collator.chunk(function, items, now))

    def own(self, call: Call) -> None:
        """Do nothing: the inputs of a lookup that has misses are copied already."""

    def _lookup(self, call: Call) -> Call:
        """Return a lookup of the keys of `call`."""
        if not call.size:
            return call
        lookup = Lookup().begin(call.function, None, call.size, call.many, call.arrived)
        lookup.uncached = call
        lookup.collator = self
        lookup.keys = [self._key(args, named) for args, named in self._collator.items(call)]
        lookup.group_keys = None if self._grouping is None else self._grouping.keys(call)
        if self._measuring is not None:
            lookup.lengths = self._measuring.lengths(call)
        lookup.results = [UNKNOWN] * len(lookup.keys)
        lookup.missing = len(lookup.keys)
        lookup.hits = 0
        lookup.to_store = []
        lookup.flights = []
        lookup.watches = {}
        if not self.callers_ask:
            self.watch(lookup)
            at_once(self.look(lookup))
        if lookup.missing:
            # An equal call may wait for the same run when this caller has left and changes its inputs.
            self._collator.own(call)
            call.inputs = _own(call.inputs)
        return lookup

    def know(self, lookup: Lookup, place: int, result: Any) -> None:
        """Answer one item with `result`, unless that is `UNKNOWN`."""
        if result is not UNKNOWN:
            lookup.hits += 1 if lookup.many else lookup.size
            self.give(lookup, place, result)

    async def look(self, lookup: Lookup) -> None:
        """Ask the cache for the items of `lookup` that have no result. Needs `watch` first, and no lock.

        An error that is no `Exception`, such as Ctrl-C, is raised.
        """
        if not lookup.missing:
            return
        faults = Faults(self._name)
        for place, key in enumerate(lookup.keys):
            if lookup.results[place] is not UNKNOWN:
                continue
            try:
                result = await self._store.get(key)
            except AsynchronousCacheError:
                raise
            except Exception as error:  # noqa: BLE001  a cache that fails is no cache
                if not faults.add(error):
                    break
            else:
                self.know(lookup, place, result)
        faults.log("key(s)")

    def _key(self, args: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
        if self._cache_key is not None:
            return called(self._cache_key, f"{self._name}: cache_key", args, named)
        key = args[0] if len(args) == 1 and not named else (args, tuple(sorted(named.items())))
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(f"{self._name}: cache_key is needed, since an item is no key: {error}") from error
        return key if self._whose is None else (self._whose, key)

    def watch(self, lookup: Lookup) -> None:
        """Have `lookup` see the results that land from now on, and take those that are still being stored."""
        with self._guard.lock:  # two callers of one key must not make two watches
            for place, key in enumerate(lookup.keys):
                lookup.watches[place] = self._watches.setdefault(key, Watch())
        self.take_landed(lookup)

    def take_landed(self, lookup: Lookup) -> None:
        """Take the results that have landed since `watch`."""
        for place, watch in lookup.watches.items():
            result = watch.result
            if result is not UNKNOWN and lookup.missing and lookup.results[place] is UNKNOWN:
                self.know(lookup, place, result)

    def store(self, results: list[tuple[Hashable, Any]]) -> KeyboardInterrupt | None:
        """Store the `results` that have landed. Must be called before they are answered, and without a lock.

        Whatever the cache raises is logged: the callers are still to be answered. Returns a Ctrl-C that came
        meanwhile, which the driver of an event loop raises when that is done.
        """
        faults = Faults(self._name)
        if not self.callers_ask:
            at_once(self._keep(results, faults, BaseException))
        # After the cache: a caller that gets its watch too late for this result finds it there.
        for key, result in results:
            watch = self._watches.get(key) if self.callers_ask else self._watches.pop(key, None)
            if watch is not None:
                watch.result = result
        return faults.interrupt

    async def keep(self, lookup: Lookup) -> None:
        """Store the results that the caller of `lookup`, which is answered, has to store."""
        # Others end the caller's task: they are its cancel, its end, or Ctrl-C.
        await self._keep(lookup.to_store, Faults(self._name), (Exception, SystemExit))

    async def _keep(
        self,
        results: list[tuple[Hashable, Any]],
        faults: Faults,
        logged: type[BaseException] | tuple[type[BaseException], ...],
    ) -> None:
        for key, result in results:
            try:
                await self._store.set(key, _own(result))
            except logged as error:
                if not faults.add(error):
                    break
        faults.log("result(s), not kept")

    def miss_call(self, lookup: Lookup, places: list[int]) -> Call:
        """Return the call for the items of `lookup` at `places`."""
        uncached = lookup.uncached
        miss_call = uncached
        if uncached.many:
            inputs = self._collator.pick(uncached.inputs, places)
            miss_call = Call().begin(uncached.function, inputs, len(places), True, uncached.arrived)  # noqa: FBT003
            miss_call.context = uncached.context
            if hasattr(uncached, "key"):
                miss_call.key = uncached.key
        miss_call.deadline = lookup.deadline
        miss_call.bulk = lookup.bulk
        miss_call.keep_errors = True
        if self._grouping is not None and lookup.group_keys is not None:
            miss_call = self._grouping.divided(miss_call, [lookup.group_keys[place] for place in places])
        if self._measuring is not None and isinstance(lookup.lengths, list):
            self._measuring.arrange(miss_call, [lookup.lengths[place] for place in places])
        return miss_call

    def give(self, lookup: Lookup, place: int, result: Any) -> None:
        """Give a lookup one of its results, and with the last one its answer."""
        lookup.results[place] = _own(result)
        if lookup.missing == 1:
            self.answered(lookup)  # first: a late caller that sees nothing missing takes the answer
        lookup.missing -= 1

    @staticmethod
    def answered(lookup: Lookup) -> Lookup:
        """Give a lookup that has all results its answer."""
        if not lookup.many and lookup.error is None:
            lookup.results = lookup.results[0]
        return lookup


def _found(miss_call: Call) -> list[Any]:
    results: list[Any] = miss_call.results if miss_call.many else [miss_call.results]
    return results


def _extend(miss_call: Call, deadline: float | None) -> None:
    """Give `miss_call` the latest deadline of all lookups that wait for it."""
    for call in miss_call.members if isinstance(miss_call, Family) else [miss_call]:
        if call.deadline is not None:
            call.deadline = None if deadline is None else max(call.deadline, deadline)


def _is_late(miss_call: Call | None) -> bool:
    """Whether the deadline of `miss_call` has passed, though its callers have not been answered yet."""
    if miss_call is None:
        return False
    parts = miss_call.members if isinstance(miss_call, Family) else [miss_call]
    return any(part.left == "expired" for part in parts)


def _own(result: Any) -> Any:
    """Return a copy of arrays and of Python's own containers, which are easily changed in place.

    Other results are shared.
    """
    library = library_of(result)
    if library is not None:
        return library.copy(result)
    if type(result) is dict:
        return {key: _own(value) for key, value in result.items()}
    if type(result) in {list, tuple}:
        return type(result)(row if type(row) in _FIXED else _own(row) for row in result)
    if type(result) in {set, bytearray}:
        return result.copy()
    return result


_FIXED = {int, float, str, bool, bytes, type(None)}  # cannot be changed, and most rows are one of these
