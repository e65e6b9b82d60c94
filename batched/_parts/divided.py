"""Calls that are divided: each part knows its parent, and its places in the caller's list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from batched._core.call import Call, runs_of

CallT = TypeVar("CallT", bound=Call)


class Part(Call):
    """Some of the items of a list, which are queued as one call."""

    __slots__ = ("first", "places")

    first: int
    """The least of its places."""
    places: list[int]
    """Where in the list of the parent each item is."""

    @property
    def siblings(self) -> Sequence[Call]:
        """The parts of its list."""
        return self.parent.parts  # type: ignore[union-attr,no-any-return]

    @property
    def whole(self) -> Call:
        """The list that it is a part of."""
        return self.parent  # type: ignore[return-value]

    def place_of(self, at: int) -> int:
        """Return the place in the list of the item that is `at` this place here."""
        return self.places[at]

    def is_in_order(self, start: int, stop: int) -> bool:
        """Whether the items from `start` to `stop` are neighbours in the list, in that order."""
        first = self.places[start]
        return self.places[start:stop] == list(range(first, first + stop - start))

    def before(self, place: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return which of the items from `start` to `stop` are before a `place` of the list."""
        places = self.places
        if max(places[start:stop]) < place:  # most often, and soon asked
            return [(start, stop)]
        return runs_of([at for at in range(start, stop) if places[at] < place])

    def fail_part(self, start: int, stop: int, error: BaseException, place: int | None = None) -> bool:
        """Note that the items from `start` to `stop` have ended with `error`; return whether it is done."""
        done = super().fail_part(start, stop, error, place)
        if self.error is error:
            self.parent.note_failure(self)  # type: ignore[union-attr]
        return done


class Divided(Call):
    """A list with parts that are queued in its place. It is done when all parts are.

    What an item has failed with is known to all parts: none of them starts what is behind that item. So the
    list is done, too, when only parts are left that are wholly behind it.
    """

    __slots__ = ("_done", "_failure", "_parts")

    is_divided = True

    _done: int
    """So many of the first parts are done, at least."""

    _failure: BaseException | None
    """The first error so far, in the order of the list."""
    _parts: list[Part]

    @property
    def parts(self) -> Sequence[Part]:
        """The calls that run in the place of this one."""
        return self._parts

    @property
    def unstarted(self) -> int:
        """How many items wait in the queue for this call."""
        return sum([part.waiting for part in self._parts])

    def enter(self, batcher: object) -> Sequence[Call]:  # noqa: ARG002  as for any call
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
        if part.error is not None and part.error is not self._failure:  # no item has failed: it is late, say
            self.left = part.left
            self.owns_error = getattr(part, "owns_error", False)
            self.fail(part.error)
            return (self,), [other for other in self._parts if other.missing]
        places: list[int] = part.places  # type: ignore[attr-defined]
        if self.keep_errors and hasattr(part, "owns_error"):
            self.owns_error = part.owns_error and getattr(self, "owns_error", True)
        if self._failure is None:
            if self.results is None:
                self.results = [None] * self.size
            for place, result in zip(places, part.results, strict=True):
                self.results[place] = result
        elif not self._may_fail_earlier():
            self.fail(self._failure)
            return (self,), [other for other in self._parts if other.missing]
        self.missing -= len(places)  # not its size, which is less where items of it have been dropped
        if self.missing:
            return (), ()
        self._parts = []  # they know this call: a cycle would keep its results
        return (self,), ()

    def abandon(self, error: BaseException) -> Sequence[Call]:
        """End this call, with `error` if it has no answer; return the calls that are done."""
        if self.missing:
            self.fail(error)
        for part in self._parts:
            part.missing = 0
        return (self,) if self.parent is None else self.parent.abandon(error)

    def _may_fail_earlier(self) -> bool:
        """Whether an item of a part that is not done is before the first one that has failed."""
        parts = self._parts
        while self._done < len(parts) and not parts[self._done].missing:
            self._done += 1
        return self._done < len(parts) and parts[self._done].first < parts[self._done].failed_at

    def note_failure(self, part: Part) -> None:
        """Have all parts know the error of `part`, which is the first one so far."""
        self._failure = part.error
        self.note = part.note
        self.owns_error = getattr(part, "owns_error", False)
        for other in self._parts:
            if other.missing and other is not part:
                other.error = part.error
                other.failed_at = part.failed_at
                other.note = part.note


def divide(call: Call, places: Iterable[list[int]], pick: Callable[[Any, list[int]], Any]) -> Divided:
    """Return `call`, a list, divided: each part has the items of some `places`, picked from its inputs.

    The places of each part are in order, and so are the first places of all parts. A layer may put the places
    of a part into another order.
    """
    divided = like(Divided(), call, None, call.size)
    divided._done = 0  # noqa: SLF001
    divided._failure = None  # noqa: SLF001
    divided._parts = []  # noqa: SLF001
    for theirs in places:
        part = like(Part(), call, pick(call.inputs, theirs), len(theirs))
        part.first = theirs[0]
        part.places = theirs
        part.parent = divided
        divided._parts.append(part)  # noqa: SLF001
    return divided


def like(new: CallT, call: Call, inputs: Any, size: int) -> CallT:
    """Return `new`, a call for other `inputs`, that asks for them as `call` does."""
    new.begin(call.function, inputs, size, call.many, call.arrived, call.deadline, call.bulk)
    new.keep_errors = call.keep_errors
    new.context = call.context
    new.belong_with(call)
    return new
