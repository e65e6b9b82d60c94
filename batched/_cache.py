"""`cache`: a layer in front of the queue. What it knows is answered at once; equal items in flight run once.

A caller waits for a `Lookup`. What nobody has asked for yet goes off as one call, the errand, which belongs
to the layer: it is cancelled when nobody waits for any of it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from batched._call import Call
from batched._family import Family, called
from batched._libraries import library_of
from batched._store import UNKNOWN, AsynchronousCacheError, Faults, Store, at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from contextlib import AbstractContextManager

    from batched._call import Wrapper
    from batched._family import Groupable, GroupingCollator
    from batched._measuring import MeasuringCollator

__all__ = ["CachingCollator", "Flights", "Lookup"]


class Lookup(Call):
    """What a caller waits for: some results known, some in flight."""

    __slots__ = ("asked", "collator", "flights", "group_keys", "hits", "keys", "mine", "stored", "watches")

    asked: Call
    """The call as it would be without a cache."""
    collator: CachingCollator
    keys: list[Hashable]
    """One per item; one in all for arrays."""
    group_keys: list[Hashable] | None
    hits: int
    """Items answered without a run of their own."""
    mine: list[tuple[Hashable, Any]]
    """The keys and results that its caller is to keep, where callers do that."""
    flights: list[Flight]
    stored: int
    """How often results had been stored when the cache was asked."""
    watches: dict[int, Watch]
    """By place, where callers ask and may have to wait."""

    @property
    def unanswered(self) -> int:
        """The items that nothing has answered."""
        return self.missing if self.many else self.size * self.missing

    def note_context(self) -> None:
        """Note it for what may run in its place."""
        self.asked.note_context()


class Flight:
    """The one run of an item that somebody waits for."""

    __slots__ = ("errand", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.errand: Call | None = None
        self.waiting: list[tuple[Lookup, int]] = []


class Watch:
    """What callers that ask for a key have in common: its result, once that has landed.

    It lasts as long as any of them asks, waits, or has the result stored. A caller that asks next finds the
    result here or in the cache.
    """

    __slots__ = ("__weakref__", "result")

    def __init__(self) -> None:
        self.result = UNKNOWN


class Flights:
    """What is in flight. Its owner sees to it that no two threads are in here at once."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._errands: dict[Call, list[Flight]] = {}

    def enter(self, lookup: Lookup) -> Call | None:
        """Join what is in flight; return the call for the rest, to be queued, None if nothing is left."""
        lookup.collator.look_again(lookup)
        if not lookup.missing:
            return None
        mine: list[tuple[int, Flight]] = []
        joined: list[Flight] = []
        for place, key in enumerate(lookup.keys):
            if lookup.results[place] is not UNKNOWN:
                continue
            flight = self._flights.get(key)
            if flight is None or _is_late(flight.errand):
                self._flights[key] = flight = Flight(key)
                mine.append((place, flight))
            else:
                joined.append(flight)
            flight.waiting.append((lookup, place))
            lookup.flights.append(flight)
        lookup.hits += len(joined) if lookup.many else len(joined) * lookup.size
        for flight in joined:
            if flight.errand is not None:
                _extend(flight.errand, lookup.deadline)
        if not mine:
            return None
        errand = lookup.collator.errand(lookup, [place for place, _ in mine])
        flights = [flight for _, flight in mine]
        for flight in flights:
            flight.errand = errand
        self._errands[errand] = flights
        return errand

    def results(self, errand: Call) -> list[tuple[Hashable, Any]]:
        """Return what `errand`, which is done, has found: keys and results, errors left out."""
        flights = self._errands.get(errand)
        if flights is None or errand.error is not None:
            return []
        found = zip(flights, _found(errand), strict=True)
        return [(flight.key, result) for flight, result in found if not isinstance(result, BaseException)]

    def complete(self, calls: list[Call]) -> tuple[list[Call], list[Call]]:
        """Return the calls to answer now that `calls` are done, and those that nobody wants any more."""
        answered: list[Call] = []
        unwanted: list[Call] = []
        for call in calls:
            flights = self._errands.pop(call, None)
            if flights is None:  # the last who waited has left meanwhile
                continue
            results = [call.error] * len(flights) if call.error is not None else _found(call)
            for flight, result in zip(flights, results, strict=True):
                if self._flights.get(flight.key) is flight:
                    del self._flights[flight.key]
                kept = failed = isinstance(result, BaseException)
                for lookup, place in flight.waiting:
                    if not lookup.missing:
                        continue
                    if failed and (call.error is not None or not lookup.keep_errors):
                        lookup.left = call.left
                        lookup.fail(result)
                        unwanted += self.leave(lookup)
                    else:
                        if not kept:  # by one of those who have not left
                            lookup.mine.append((flight.key, result))
                            kept = True
                        lookup.collator.give(lookup, place, result)
                    if not lookup.missing:
                        answered.append(lookup)
        return answered, unwanted

    def leave(self, lookup: Lookup) -> list[Call]:
        """Wait for nothing any more; return the errands of which nobody wants anything."""
        lookup.missing = 0
        errands = []
        for flight in lookup.flights:
            flight.waiting = [(other, place) for other, place in flight.waiting if other is not lookup]
            errand = flight.errand
            if errand is None:  # it has not gone off, as something was wrong with a later item
                if not flight.waiting:
                    self._flights.pop(flight.key, None)
            elif errand not in errands and not any(other.waiting for other in self._errands.get(errand, ())):
                errands.append(errand)
        lookup.flights = []
        for errand in errands:
            for flight in self._errands.pop(errand, ()):
                if self._flights.get(flight.key) is flight:
                    del self._flights[flight.key]
        return errands


class CachingCollator:
    """Another collator whose calls are looked up first."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        collator: Groupable,
        grouping: GroupingCollator | None,
        measuring: MeasuringCollator | None,
        cache: Any,
        cache_key: Callable[..., Hashable] | None,
        lock: AbstractContextManager[Any] | None,
        name: str,
        *,
        bound: bool,
    ) -> None:
        self._collator = collator
        self._grouping = grouping
        self._measuring = measuring
        self._lock = lock or nullcontext()
        self._store = Store(cache, self._lock, name)
        self.callers_ask = False  # and so have to tell it what they got
        self._watches: WeakValueDictionary[Hashable, Watch] = WeakValueDictionary()
        self._cache_key = cache_key
        self._name = name
        # Instances give different answers, unless `cache_key` says otherwise; and a cache may outlive them.
        self._whose = uuid4().hex if bound and cache_key is None else None
        self._stored = 0
        self.chunk_size = collator.chunk_size
        batches = measuring or collator
        self.collate = batches.collate
        self.split = batches.split
        self.place = batches.place

    def let_callers_ask(self) -> None:
        """Have callers, which must be tasks, ask and tell the cache: they can await what it returns."""
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
        """Do nothing: a lookup that runs has inputs of its own."""

    def _lookup(self, call: Call) -> Call:
        """Return a lookup of the keys of `call`."""
        if not call.size:
            return call
        lookup = Lookup().begin(call.function, None, call.size, call.many, call.arrived)
        lookup.asked = call
        lookup.collator = self
        lookup.keys = [self._key(args, named) for args, named in self._collator.items(call)]
        lookup.group_keys = None if self._grouping is None else self._grouping.keys(call)
        if self._measuring is not None:
            lookup.lengths = self._measuring.lengths(call)
        lookup.results = [UNKNOWN] * len(lookup.keys)
        lookup.missing = len(lookup.keys)
        lookup.hits = 0
        lookup.mine = []
        lookup.flights = []
        lookup.stored = self._stored
        lookup.watches = {}
        if not self.callers_ask:
            at_once(self.look(lookup))
        if lookup.missing:
            # An equal call may wait for the same run when this caller has left and changes what it passed.
            self._collator.own(call)
            call.inputs = _own(call.inputs)
        return lookup

    def know(self, lookup: Lookup, place: int, result: Any) -> None:
        """Take what the cache says of an item, `UNKNOWN` too."""
        if result is not UNKNOWN:
            lookup.hits += 1 if lookup.many else lookup.size
            self.give(lookup, place, result)

    async def look(self, lookup: Lookup) -> None:
        """Ask the cache for what is not known of `lookup`."""
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
        """Have `lookup` learn what lands from now on, and take what has landed and is still being stored."""
        with self._lock:
            for place, key in enumerate(lookup.keys):
                if lookup.results[place] is UNKNOWN:
                    watch = self._watches.get(key)
                    if watch is None:
                        watch = self._watches[key] = Watch()
                    lookup.watches[place] = watch
        self._take_landed(lookup)

    def _take_landed(self, lookup: Lookup) -> None:
        for place, watch in lookup.watches.items():
            if lookup.missing and lookup.results[place] is UNKNOWN:
                self.know(lookup, place, watch.result)

    def look_again(self, lookup: Lookup) -> None:
        """Take what has landed since the cache was asked."""
        if self.callers_ask:
            self._take_landed(lookup)
        elif lookup.stored != self._stored:
            at_once(self.look(lookup))

    def store(self, results: Iterable[tuple[Hashable, Any]]) -> None:
        """Keep what has landed, before any caller can ask again."""
        if not self.callers_ask:
            at_once(self._keep(results))
            return
        for key, result in results:
            watch = self._watches.get(key)
            if watch is not None:
                watch.result = result

    async def keep(self, lookup: Lookup) -> None:
        """Keep the results that are the caller's to keep, now that `lookup` is answered."""
        await self._keep(lookup.mine)

    async def _keep(self, results: Iterable[tuple[Hashable, Any]]) -> None:
        faults = Faults(self._name)
        for key, result in results:
            try:
                await self._store.set(key, _own(result))
            except (Exception, SystemExit) as error:  # noqa: BLE001  callers have their answers all the same
                if not faults.add(error):
                    break
            else:
                self._stored += 1
        faults.log("result(s), not kept")

    def errand(self, lookup: Lookup, places: list[int]) -> Call:
        """Return the call for some of the items that `lookup` is for."""
        asked = lookup.asked
        errand = asked
        if asked.many:
            inputs = self._collator.pick(asked.inputs, places)
            errand = Call().begin(asked.function, inputs, len(places), True, asked.arrived)  # noqa: FBT003
            errand.context = asked.context
            if hasattr(asked, "key"):
                errand.key = asked.key
        errand.deadline = lookup.deadline
        errand.bulk = lookup.bulk
        errand.keep_errors = True
        if self._grouping is not None and lookup.group_keys is not None:
            errand = self._grouping.divided(errand, [lookup.group_keys[place] for place in places])
        if self._measuring is not None and isinstance(lookup.lengths, list):
            self._measuring.arrange(errand, [lookup.lengths[place] for place in places])
        return errand

    def give(self, lookup: Lookup, place: int, result: Any) -> None:
        """Give a lookup one of its results, and with the last one its answer."""
        lookup.results[place] = _own(result)
        if lookup.missing == 1:
            self.answered(lookup)  # before nothing is missing: a late caller may be looking
        lookup.missing -= 1

    @staticmethod
    def answered(lookup: Lookup) -> Lookup:
        """Give a lookup that has all results its answer."""
        if not lookup.many and lookup.error is None:
            lookup.results = lookup.results[0]
        return lookup


def _found(errand: Call) -> list[Any]:
    results: list[Any] = errand.results if errand.many else [errand.results]
    return results


def _extend(errand: Call, deadline: float | None) -> None:
    """Let `errand` wait as long as somebody waits for it."""
    for call in errand.members if isinstance(errand, Family) else [errand]:
        if call.deadline is not None:
            call.deadline = None if deadline is None else max(call.deadline, deadline)


def _is_late(errand: Call | None) -> bool:
    """Whether the deadline of `errand` has passed, though those who wait for it have not been told yet."""
    if errand is None:
        return False
    parts = errand.members if isinstance(errand, Family) else [errand]
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


_FIXED = {int, float, str, bool, bytes, type(None)}  # asked for by far most often, and never changed
