"""`request_cache`: a cache for the calls of one request, in front of the queue, and of the decorator's cache.

It is a layer as the decorator's cache is, of which the calls of some views pass through it and no others. A
call that neither cache answers has a `CachedCall` of the decorator's cache in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from batched._core.batcher import Batcher
from batched._core.call import Call, Wrapper
from batched._core.options import CallOptions, Options
from batched._locks import Freed, Guard
from batched._parts.cache import CachingCollator, ask_as
from batched._parts.in_flight import CachedCall
from batched._parts.layers import LayeredCollator
from batched._parts.store import UNKNOWN, Faults, at_once


class RequestCall(CachedCall):
    """A call that the cache of its request may answer."""

    joins_any = True  # that an item is looked up once is promised, however long a list it is in

    def enter(self, batcher: Batcher) -> Sequence[Call]:
        """Join the items in flight; return the calls to queue for the other items."""
        queued = super().enter(batcher)
        runs = dict.fromkeys(item.miss.call for item in self.joined if item.miss is not None)
        self.to_keep = [run.to_store for run in runs if isinstance(run, CachedCall)]
        return queued

    def forget_watches(self) -> None:
        """Let go of results that land: the caller has its answer."""
        super().forget_watches()
        self.behind = None
        self.to_keep = ()


class RequestCache(CachingCollator):
    """The collator of a function, with the cache of a request in front of it."""

    def __init__(
        self,
        behind: Any,
        cache: Any,
        cache_key: Callable[..., Hashable] | None,
        name: str,
        owner: str | None,
    ) -> None:
        is_layered = isinstance(behind, LayeredCollator)
        inner = behind.inner if is_layered else behind
        super().__init__(inner, behind.layers if is_layered else [], cache, cache_key, name, bound=False)
        self.cache: Any = cache
        self._owner = owner if cache_key is None else None
        self._behind: Any = behind if isinstance(behind, CachingCollator) else None

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        call = make(function, *args)
        if not call.size:
            return call
        cached = RequestCall(call, self, self.keys(call), self._values(call))
        super().watch(cached)
        at_once(super().look, cached)
        behind = self._behind
        if cached.missing and behind is not None:
            cached.places = [place for place, result in enumerate(cached.results) if result is UNKNOWN]
            keys = behind.keys(self._picked(cached, cached.places))
            cached.behind = CachedCall(call, behind, keys, [])
            if not behind.callers_ask:
                self.watch(cached)
                at_once(self.look, cached)
        if cached.missing:
            self._own_inputs(call)
        return cached

    def watch(self, cached: CachedCall) -> None:
        """Watch the cache of the decorator: that of the request has been asked."""
        if cached.behind is not None:
            self._behind.watch(cached.behind)

    async def look(self, cached: CachedCall) -> None:
        """Ask the cache of the decorator, and keep what it has for the request."""
        behind = cached.behind
        if behind is None:
            return
        await self._behind.look(behind)
        # Another call of the request may have got some of them meanwhile: the request sees one value.
        await super().look(cached)
        cached.take_landed()
        found = behind.results if behind.many or behind.missing else [behind.results]
        known = []
        for place, result in zip(cached.places, found, strict=True):
            if result is not UNKNOWN and cached.missing and cached.results[place] is UNKNOWN:
                cached.know(place, result)
                known.append((cached.keys[place], result))
        await self._keep(known, Faults(self._name), Exception)

    async def keep(self, cached: CachedCall) -> None:
        """Store in the cache of the decorator what no other caller has begun to store."""
        if cached.behind is not None:
            for results in cached.to_keep:
                cached.behind.to_store += results
                results.clear()
            await self._behind.keep(cached.behind)

    def miss_call(self, cached: CachedCall, places: list[int]) -> Call:
        """Return the call for the items of `cached` at `places`, as the cache of the decorator has it."""
        behind = cached.behind
        if behind is None:
            return super().miss_call(cached, places)
        at = {place: its for its, place in enumerate(cached.places)}
        those = [at[place] for place in places]
        values = [[each[place] for place in places] for each in cached.values]
        miss_call = CachedCall(
            self._picked(cached, places), self._behind, [behind.keys[each] for each in those], values
        )
        ask_as(miss_call, cached)
        miss_call.watches = {
            new: behind.watches[old] for new, old in enumerate(those) if old in behind.watches
        }
        return miss_call


class RequestCaches:
    """The caches of requests that are in use at one driver: views that have the same one share it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, RequestCache] = WeakValueDictionary()
        self.guard: Guard = Guard()
        self._owner = uuid4().hex

    def of(self, options: CallOptions, settings: Options, behind: Any, name: str, *, bound: bool) -> Any:
        """Return the collator in front of that `behind`, for calls with `options`."""
        cache, cache_key = options.request_cache, settings.cache_key
        with Freed(self.guard.lock), self.guard.lock:
            found = self._known.get(id(cache))
            if found is None:
                owner = self._owner if bound else None
                self._known[id(cache)] = found = RequestCache(behind, cache, cache_key, name, owner)
            return found
