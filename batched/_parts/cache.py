"""`cache`: a layer in front of the queue. Hits skip the queue; equal items in flight are computed once.

A caller waits for a `CachedCall`. Its items that are neither in the cache nor in flight are queued as one
call, the miss call. That belongs to all calls that wait for any of its items: it is cancelled when none does.

The cache is asked before a call is admitted, and told before it is answered, each time without the lock of
the batcher. Results that land in between are found in a `Watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Self
from uuid import uuid4
from weakref import WeakValueDictionary

from batched._collate.own_copies import own_copy
from batched._core.call import Call, Wrapper
from batched._core.collator import Divisible
from batched._core.keys import Key, KnownKeys, key_of, value_of
from batched._locks import Freed
from batched._parts.divided import like
from batched._parts.in_flight import CachedCall, Watch
from batched._parts.layers import Layer, LayeredCollator, Sharing, key_from, of_each
from batched._parts.store import UNKNOWN, AsynchronousCacheError, Faults, Store, at_once


class CachingCollator(LayeredCollator):
    """Another collator, with a cache in front of it."""

    def __init__(  # noqa: PLR0913
        self,
        collator: Divisible,
        layers: list[Layer],
        cache: Any,
        cache_key: Callable[..., Hashable] | None,
        name: str,
        *,
        bound: bool,
    ) -> None:
        super().__init__(collator, layers)
        self._store = Store(cache, name)
        self.callers_ask = False  # whether callers, which can await it, use the cache, not the driver
        self._watches: WeakValueDictionary[Hashable, Watch] = WeakValueDictionary()
        self._known_keys: KnownKeys = KnownKeys()
        self._cache_key = cache_key
        self.items_are_keys: bool = cache_key is None
        """Whether an item that is no key any more is another item, too."""
        self._name = name
        # Instances give different answers, unless there is a `cache_key`; and a cache may outlive them.
        self._owner: str | None = uuid4().hex if bound and self.items_are_keys else None

    def claim(self, function: Any, decorated: Any) -> Self:
        """Return this; `TypeError` if another function has the same keys in this cache."""
        if self.items_are_keys and self._owner is None:
            self._store.claim(function, decorated)
        return self

    def take_given_tenants(self) -> None:
        """Have calls of `GIVEN_TENANT`, where there is one: a call that runs in their place has it too."""
        if not any(isinstance(each, Sharing) for each in self.layers):
            self.layers.append(Sharing(self.inner, None, self._name))
        super().take_given_tenants()

    def let_callers_ask(self) -> None:
        """Have callers, which must be tasks, ask and tell a cache that is no mapping: they can await it."""
        self.callers_ask = self._store.awaits = not self._store.is_mapping

    def own(self, call: Call) -> None:
        """Do nothing: the inputs of a cached call have been copied if some of its items are misses."""

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        """Return a cached call in the place of the call that `make` returns."""
        call = make(function, *args)
        if not call.size:
            return call
        cached = CachedCall(call, self, self.keys(call), self._values(call))
        if not self.callers_ask:
            self.watch(cached)
            at_once(self.look, cached)
        if cached.missing:
            self._own_inputs(call)
        return cached

    def keys(self, call: Call) -> list[Hashable]:
        """Return the key of each item of `call`."""
        return of_each(self._key, self.inner, call, self._name)

    def _own_inputs(self, call: Call) -> None:
        """Copy them: an equal call may wait for the same run when this caller has left and changes them."""
        self.inner.own(call)
        call.inputs = own_copy(call.inputs)

    async def look(self, cached: CachedCall) -> None:
        """Ask the cache for the items of `cached` that have no result. Needs `watch` first, and no lock.

        An error that is no `Exception`, such as Ctrl-C, is raised.
        """
        if not cached.missing:
            return
        faults = Faults(self._name)
        for place, key in enumerate(cached.keys):
            if cached.results[place] is not UNKNOWN:
                continue
            try:
                result = await self._store.get(value_of(key))
            except AsynchronousCacheError:
                raise
            except Exception as error:  # noqa: BLE001  a cache that fails is no cache
                if not faults.add(error):
                    break
            else:
                cached.know(place, result)
        faults.log("key(s)")

    def _key(self, args: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
        if self._cache_key is not None:
            return key_from(self._cache_key, f"{self._name}: cache_key", args, named)
        key = args[0] if len(args) == 1 and not named else (args, tuple(sorted(named.items())))
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(
                f"{self._name}: the cache needs a cache_key, because this item cannot be a key: {error}"
            ) from error
        return key_of(key if self._owner is None else (self._owner, key), f"{self._name}: cache")

    def watch(self, cached: CachedCall) -> None:
        """Have `cached` see the results that land from now on, and take those that are still being stored.

        Its keys are compared with others here, and not any more: a `BatchError` says if that fails.
        """
        with Freed(self._store.lock), self._store.lock:  # two callers of one key must not make two watches
            for key in cached.keys:
                if type(key) is Key:
                    key.settle(self._known_keys)
            cached.watches |= {
                place: self._watches.setdefault(key, Watch()) for place, key in enumerate(cached.keys)
            }
        cached.take_landed()

    def land(self, key: Hashable, result: Any) -> Watch | None:
        """Show `result`, which has landed, to the callers that are asking the cache for `key`."""
        watch = self._watches.get(key)
        if watch is not None:
            watch.result = result
        return watch

    def store(self, landed: list[tuple[Hashable, Any, Watch | None]]) -> KeyboardInterrupt | None:
        """Store results that have landed. Must be called before they are answered, and without a lock.

        Whatever the cache raises is logged: the callers are still to be answered. Returns a Ctrl-C that came
        meanwhile: the driver of an event loop raises it once the callers have their answers.
        """
        if self.callers_ask:
            return None
        faults = Faults(self._name)
        at_once(self._keep, [(key, result) for key, result, _ in landed], faults, BaseException)
        for key, _, watch in landed:  # from now on callers find the result in the cache
            if watch is not None and self._watches.get(key) is watch:
                del self._watches[key]
        return faults.interrupt

    async def keep(self, cached: CachedCall) -> None:
        """Store the results that the caller of `cached`, which is answered, has to store."""
        # Any other error ends the task of the caller: that is cancelled or closed, or Ctrl-C came.
        await self._keep(cached.to_store, Faults(self._name), Exception, SystemExit)

    async def _keep(
        self, results: list[tuple[Hashable, Any]], faults: Faults, *logged: type[BaseException]
    ) -> None:
        for key, result in results:
            try:
                await self._store.set(value_of(key), own_copy(result))
            except logged as error:
                if not faults.add(error):
                    break
        faults.log("result(s), which were not stored")

    def miss_call(self, cached: CachedCall, places: list[int]) -> Call:
        """Return the call for the items of `cached` at `places`."""
        miss_call = self._picked(cached, places)
        return self._applied(miss_call, [[each[place] for place in places] for each in cached.values])

    def _picked(self, cached: CachedCall, places: list[int]) -> Call:
        """Return a call for the items of `cached` at `places`, before the layers change it."""
        picked = uncached = cached.uncached
        if uncached.many:
            picked = like(Call(), uncached, self.inner.pick(uncached.inputs, places), len(places))
        ask_as(picked, cached)
        return picked


def ask_as(call: Call, cached: CachedCall) -> None:
    """Have `call` ask as `cached` does, in the place of which it runs."""
    call.deadline = cached.deadline
    call.bulk = cached.bulk
    call.belong_with(cached)
    call.keep_errors = True
