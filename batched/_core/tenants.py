"""The tenants of a batcher, as `fair_by` or a server names them: what each has in the queue, and its share.

A bounded queue that is full has an equal share of its bound for each tenant. A tenant that has less gets in:
in the place of the newest calls of the tenant that has most or, if calls wait for room, before the calls of
tenants that have more. A tenant is known as long as an item of it waits. Calls that have no tenant are of one
together: calls that the process of a server makes of its own function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from operator import attrgetter

from batched._core.call import Call, Slice
from batched._core.line import Line
from batched._core.turns import Flow, Turns, large_calls

_ITEMS = attrgetter("items")
_LOOKED_AT = 64  # tenants: more would take too long for each call, and tell little more


def tenant_of(call: Call) -> Hashable:
    """Return the tenant of `call`, None if it has none."""
    tenant: Hashable = getattr(call, "tenant", None)
    return tenant


class _Tenant:
    """What waits of one tenant."""

    __slots__ = ("calls", "items", "outside")

    def __init__(self) -> None:
        self.items = 0
        """In the queue."""
        self.calls: dict[Call, None] = {}
        """In the queue, oldest first."""
        self.outside: dict[Call, None] = {}
        """Calls that wait for room, oldest first."""


class Tenants:
    """What waits of each tenant, in all queues of one batcher."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Tenant] = {}
        self._some: list[_Tenant] = []  # the tenants looked at, until items leave the queue

    def __len__(self) -> int:
        return len(self._known)

    # -- the queue ------------------------------------------------------------------------------------

    def came(self, calls: Iterable[Call]) -> None:
        """Note that `calls` wait in the queue."""
        for call in calls:
            name = getattr(call, "tenant", None)  # without a function for each: a server has these for all
            tenant = self._known.get(name) or self._new(name)
            tenant.items += call.waiting
            tenant.calls[call] = None

    def went(self, slices: Iterable[Slice], *, wholly: bool = False) -> None:
        """Note that items of calls do not wait any more: all of a call, if none waits now or `wholly`."""
        self._some = []
        for call, start, stop in slices:
            name = getattr(call, "tenant", None)
            tenant = self._known[name]
            tenant.items -= stop - start
            if wholly or not call.waiting:
                del tenant.calls[call]
                if not (tenant.calls or tenant.outside):
                    del self._known[name]

    def _new(self, name: Hashable) -> _Tenant:
        tenant = self._known[name] = _Tenant()
        return tenant

    def items_of(self, call: Call) -> int:
        """Return how many items wait of the tenant of `call`."""
        tenant = self._known.get(tenant_of(call))
        return 0 if tenant is None else tenant.items

    def ahead(self, call: Call, items: int, batch_size: int, *, large: bool) -> int:
        """Return how many items go ahead of `call`, of `items`: each tenant has had as many, or all.

        Needs no lock: it is an estimate.
        """
        tenant = self._known.get(tenant_of(call))
        own = 0 if tenant is None else tenant.items
        if tenant is not None and large:  # its large calls take turns too
            own = min(own, len(tenant.calls) * max(items, batch_size))
        each = max(own + items, batch_size // 4)
        some = self._some
        if len(some) < _LOOKED_AT // 2:  # a list of all takes long: where they are many, once a batch
            known = [*self._known.values()]
            self._some = some = known[:: len(known) // _LOOKED_AT + 1]
        others = sum([min(other.items, each) for other in some if other is not tenant])
        return own + others * len(self._known) // max(len(some), 1)

    # -- the door -------------------------------------------------------------------------------------

    def has_right(self, call: Call, size: int, bound: int) -> bool:
        """Whether the tenant of `call` has so little that `size` items more are within its share of `bound`.

        Not if it waits for room with other calls, which come first.
        """
        tenant = self._known.get(tenant_of(call))
        if tenant is None:
            return size <= bound / (len(self._known) + 1)
        return not tenant.outside and tenant.items + size <= bound / len(self._known)

    def in_the_way(self, missing: int, call: Call, bound: int) -> list[Call]:
        """Return calls of `missing` items, which wait in the place of `call`; none if there are not so many.

        They are the newest of the tenants that have most, and more than their share. Left out are calls that
        have begun, that other callers wait for too, or that are part of a `map`, which is never refused.
        """
        share = bound / (len(self._known) + (tenant_of(call) not in self._known))
        items = {name: tenant.items for name, tenant in self._known.items()}
        newest = {name: reversed(tenant.calls) for name, tenant in self._known.items()}
        found: dict[Call, Call] = {}  # a part of each list: the others are refused with it
        while missing > 0 and items:
            most = max(items, key=items.__getitem__)
            if items[most] <= share:
                return []
            other = next(newest[most], None)
            if other is None:
                del items[most]
            elif other.whole not in found and _may_be_refused(other):
                found[other.whole] = other
                missing -= other.whole.unstarted
                items[most] -= other.whole.unstarted
        return [*found.values()] if missing <= 0 else []

    def wait(self, call: Call) -> None:
        """Note that `call` waits for room."""
        name = tenant_of(call)
        tenant = self._known.get(name) or self._new(name)
        tenant.outside[call] = None

    def end_wait(self, call: Call) -> None:
        """Note that `call` does not wait for room any more; the next turn of its tenant is the last."""
        tenant = self._known.pop(tenant_of(call))
        del tenant.outside[call]
        if tenant.calls or tenant.outside:
            self._known[tenant_of(call)] = tenant

    def next_outside(self) -> Call:
        """Return the call that is let in next: its tenant has least in the queue of those that wait."""
        waiting = [tenant for tenant in self._known.values() if tenant.outside]
        return next(iter(min(waiting, key=_ITEMS).outside))


def _may_be_refused(call: Call) -> bool:
    if hasattr(call, "flow") or call.is_shared:
        return False
    return all(part.waiting == part.size for part in call.siblings)


class TenantTurns(Turns):
    """The calls of one class in a queue that is divided by tenant: tenants take turns."""

    __slots__ = ("_tenants",)

    def __init__(self, batch_size: int, tenants: Tenants, *, large: bool) -> None:
        new_flow: Callable[[], Flow] = partial(large_calls, batch_size) if large else Line
        super().__init__(batch_size, tenant_of, new_flow, whole=0)
        self._tenants = tenants

    def __bool__(self) -> bool:
        """Whether calls are known: of those that have been taken, none is, so there is nothing to clear."""
        return bool(self._ages)

    def extend(self, calls: Iterable[Call]) -> None:
        """Append `calls`, each to those of its tenant."""
        super().extend(calls)
        self._tenants.came(calls)

    def clear(self) -> None:
        """Forget all calls."""
        self._tenants.went([(call, 0, call.waiting) for call in self], wholly=True)
        super().clear()

    def removed(self, call: Call, items: int, *, ran: bool = False) -> None:
        """Note that `items` of `call` do not wait any more."""
        super().removed(call, items, ran=ran)
        self._tenants.went([(call, 0, items)])

    def _note(self, slices: list[Slice]) -> None:
        super()._note(slices)
        self._tenants.went(slices)
