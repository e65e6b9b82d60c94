"""Calls that are divided: each part knows its parent, and its places in the caller's list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from batched._core.call import Call

CallT = TypeVar("CallT", bound=Call)


class Part(Call):
    """Some of the items of a list, which are queued as one call."""

    __slots__ = ("places",)

    places: list[int]
    """Where in the list of the parent each item is."""

    @property
    def whole_size(self) -> int:
        """How many items the parent has: a large list stays a large call when it is divided."""
        return self.parent.size  # type: ignore[union-attr,no-any-return]


class Divided(Call):
    """A list with parts that are queued in its place. It is done when all parts are, or one has failed."""

    __slots__ = ("_parts",)

    is_divided = True

    _parts: list[Part]

    @property
    def parts(self) -> Sequence[Part]:
        """The calls that run in the place of this one."""
        return self._parts

    @property
    def unstarted(self) -> int:
        """How many items wait in the queue for this call."""
        return sum([part.waiting for part in self._parts])

    @property
    def is_shared(self) -> bool:
        """Whether several callers wait for it, as for items that a cache does not know."""
        return self.parent is not None and self.parent.is_shared

    def enter(self, in_flight: object) -> Sequence[Call]:  # noqa: ARG002  as for any call
        """Return the parts, to be queued."""
        return self._parts

    def leave(self) -> Sequence[Call]:
        """Return the parts, to be dropped."""
        return self._parts

    def note_context(self) -> None:
        """Note the caller's context for the parts."""
        for part in self._parts:
            part.note_context()

    def take(self, part: Call) -> tuple[Sequence[Call], Sequence[Call]]:
        """Take the answer of `part`: return this call if it is done with it, and the parts to drop."""
        if not self.missing:
            return (), ()
        if part.error is not None:
            self.left = part.left
            self.fail(part.error)
            return (self,), [other for other in self._parts if other.missing]
        if self.results is None:
            self.results = [None] * self.size
        for place, result in zip(part.places, part.results, strict=True):  # type: ignore[attr-defined]
            self.results[place] = result
        self.missing -= part.size
        return () if self.missing else (self,), ()


def divide(call: Call, places: Iterable[list[int]], pick: Callable[[Any, list[int]], Any]) -> Divided:
    """Return `call`, a list, divided: each part has the items of some `places`, picked from its inputs."""
    divided = like(Divided(), call, None, call.size)
    divided._parts = []  # noqa: SLF001
    for theirs in places:
        part = like(Part(), call, pick(call.inputs, theirs), len(theirs))
        part.places = theirs
        part.parent = divided
        divided._parts.append(part)  # noqa: SLF001
    return divided


def like(new: CallT, call: Call, inputs: Any, size: int) -> CallT:
    """Return `new`, a call for other `inputs`, that asks for them as `call` does."""
    new.begin(call.function, inputs, size, call.many, call.arrived, call.deadline, call.bulk)
    new.keep_errors = call.keep_errors
    new.context = call.context
    if hasattr(call, "flow"):
        new.flow = call.flow
    if hasattr(call, "key"):
        new.key = call.key
    return new
