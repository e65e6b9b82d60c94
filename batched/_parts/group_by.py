"""`group_by`: a list whose items do not belong together is divided, and answered as one all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from batched._core.call import Call, Collator
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from batched._core.call import Wrapper

CallT = TypeVar("CallT", bound=Call)

__all__ = ["Family", "Groupable", "GroupingCollator", "Member", "called", "complete"]


class Member(Call):
    """Those items of a list that have one key."""

    __slots__ = ("family", "places")

    family: Family
    places: list[int]
    """Where in the list."""

    @property
    def whole_size(self) -> int:
        """How many items the whole list has: it is no small call because its items have many keys."""
        return self.family.size


class Family(Call):
    """A list call whose items have several keys. It is never queued itself: its members are."""

    __slots__ = ("members",)

    members: list[Member]

    def note_context(self) -> None:
        """Note it for the members, which run in its place."""
        for member in self.members:
            member.note_context()


def complete(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """Return the calls to answer now that `calls` are done, and those to drop as their family has failed."""
    answered: list[Call] = []
    orphans: list[Call] = []
    for call in calls:
        if not isinstance(call, Member):
            answered.append(call)
            continue
        family = call.family
        if not family.missing:
            continue
        if call.error is not None:
            family.left = call.left
            family.fail(call.error)
            orphans += [member for member in family.members if member.waiting]
        else:
            if family.results is None:
                family.results = [None] * family.size
            for place, result in zip(call.places, call.results, strict=True):
                family.results[place] = result
            family.missing -= call.size
        if not family.missing:
            answered.append(family)
    return answered, orphans


class Groupable(Collator, Protocol):
    """A collator whose calls can be divided by item."""

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as the arguments that it was passed as."""
        ...

    def pick(self, inputs: Any, places: list[int]) -> Any:
        """Return the inputs of some of the items of a list call."""
        ...


class GroupingCollator:
    """Another collator whose calls have the key that `group_by` gives, or are divided by it."""

    def __init__(self, collator: Groupable, group_by: Callable[..., Hashable], name: str) -> None:
        self._collator = collator
        self._group_by = group_by
        self._name = name
        self.chunk_size = collator.chunk_size
        self.collate = collator.collate
        self.split = collator.split
        self.place = collator.place

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean, divided by key."""
        return self._grouped(self._collator.read(function, args, named, now))

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, with its key."""
        return self._grouped(self._collator.one(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`, divided by key."""
        return self._grouped(self._collator.chunk(function, items, now))

    def own(self, call: Call) -> None:
        """Copy what of the inputs the caller could still change."""
        for part in call.members if isinstance(call, Family) else [call]:
            self._collator.own(part)

    def _grouped(self, call: Call) -> Call:
        return self.divided(call, self.keys(call))

    def keys(self, call: Call) -> list[Hashable]:
        """Return the key of each item, one for all of arrays."""
        return [self._key(args, named) for args, named in self._collator.items(call)]

    def _key(self, args: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
        return called(self._group_by, f"{self._name}: group_by", args, named)

    def divided(self, call: Call, keys: list[Hashable]) -> Call:
        """Return `call` with its key, or a family of members with theirs."""
        own = getattr(call, "key", None)
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        if len(places) <= 1:
            call.key = (own, *places)
            return call
        family = _like(Family, call, None, call.size)
        family.members = []
        for key, theirs in places.items():
            member = _like(Member, call, self._collator.pick(call.inputs, theirs), len(theirs))
            member.key = (own, key)
            member.family = family
            member.places = theirs
            family.members.append(member)
        return family


def called(
    callback: Callable[..., Hashable], what: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Hashable:
    """Return the key that a callback of the user's, called `what`, gives for an item."""
    try:
        key = callback(*args, **named)
        hash(key)
    except Exception as error:
        raise BatchError(f"{what} failed: {type(error).__name__}: {error}") from error
    return key


def _like(kind: type[CallT], call: Call, inputs: Any, size: int) -> CallT:
    like = kind().begin(call.function, inputs, size, call.many, call.arrived, call.deadline, call.bulk)
    like.keep_errors = call.keep_errors
    like.context = call.context
    return like
