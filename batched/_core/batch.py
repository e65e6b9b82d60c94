"""The items that run together: slices of calls."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol, TypeAlias

from batched._core.call import Call, Slice
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.search import Search
from batched.errors import is_error

Place: TypeAlias = tuple[int, int]
"""An item of a batch: the number of its slice, and its place in the call."""


class Collates(Protocol):
    """What a batch asks of its collator: one input of many, and many answers of one output."""

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        ...

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice of `batch`, collated before; a part that is an exception fails its call.

        Adds the failed items of lists to `batch.failed`. Raises `TypeError` or `BatchError` if
        `outputs` are not one row per item, after it has set `batch.returned` if their number is wrong.
        """
        ...

    def place(self, piece: Slice, part: Any) -> None:
        """Keep `part` as the results of a slice that is not its whole call.

        The parts of a call come in any order. At the first part `call.results` is None; the last part has as
        many items as `call.missing`. With the lock held, but for lists: there it raises nothing, and only the
        first part need be given, as it makes `call.results` the list that the others are written into.
        """


class Batch:
    """Slices of calls that run together, at most once.

    All but `run` and `split` needs the lock of the batcher.
    """

    __slots__ = (
        "__weakref__",
        "_failed_at",
        "_overwritten",
        "begun",
        "blames_worker",
        "copies",
        "failed",
        "fresh",
        "has_lists",
        "is_apart",
        "least_shapes",
        "may_fail",
        "outer",
        "padded",
        "real",
        "reason",
        "returned",
        "search",
        "shapes",
        "size",
        "slices",
        "stage_s",
        "told",
    )

    returned: int | None
    """How many results its function has returned in the place of one per item, None if these were no results;
    unset to begin with."""
    copies: tuple[int, Place | None]
    """How many copies the function is given behind its items, and of which of them; None if of none of them
    there is a copy. Unset where there are none. (Places, as they keep no call alive.)"""

    blames_worker: bool
    """Whether its function has said that the worker was broken; unset unless it has."""

    fresh: int | None
    """How many of its items, the last ones, have begun with its last step; None once a worker has counted
    them, and unset unless it is refilled."""

    outer: set[Batch]
    """The batches of other functions that await its calls; unset until that is asked."""

    stage_s: tuple[float, ...]
    """How long it was prepared, in the function, and finished; unset unless it passes stages."""

    told: Callable[[Any], object]
    """What is told of its record before its callers have their answers; by None, of the end of one that is
    refilled. Unset unless it is traced."""

    def __init__(self, slices: list[Slice], size: int, reason: str = "") -> None:
        self.slices: list[Slice] = slices
        self.size: int = size
        self.reason: str = reason  # why it started, as `Stats.closed` names it
        self.begun: bool = False  # whether it streams, and has yielded: it runs, perhaps with no items left
        self.failed: int = 0  # items
        self.has_lists: bool = False  # whether some slice is of a list, as the collator found
        self.may_fail: bool = True  # whether a part may be an exception, as far as the collator has seen
        self.shapes: Any = None  # what the rows of each feature were padded to, by collators that pad
        self.least_shapes: Any = None  # what they are padded to at least, as parts of a call have to be alike
        self.real: int = 0  # elements, for collators that pad
        self.padded: int = 0  # the same with their padding
        self.search: Search | None = None  # the search for items that fail which it is a part of
        self.is_apart: bool = False  # whether it had room for items that waited, but had another key
        self._failed_at: dict[Slice, int] | None = None  # the place of the item that fails a slice of a list
        self._overwritten: list[Any] | None = None  # what errors have replaced, until `clear`

    def __len__(self) -> int:
        return self.size

    @property
    def calls(self) -> list[Call]:
        """The call of each slice."""
        return [call for call, _, _ in self.slices]

    def clear(self) -> None:
        """Drop the references to the calls: the traceback of an error would keep them all alive."""
        self.slices.clear()
        self._overwritten = None
        self._failed_at = None

    @property
    def has_several(self) -> bool:
        """Whether it has several slices: of several calls, or of a list of which it has no neighbours."""
        return len(self.slices) > 1

    @property
    def units(self) -> int:
        """How many parts it could have, of which it matters which of them fail."""
        return len(self.slices) if self.has_several else self.size

    @property
    def is_divisible(self) -> bool:
        """Whether it matters which items fail: to others, or to a list of which it has no neighbours."""
        call, start, stop = self.slices[0]
        if len(self.slices) > 1 or (call.many and call.keep_errors and self.size > 1):
            return True
        return not call.is_in_order(start, stop)

    @property
    def is_misanswered(self) -> bool:
        """Whether its function has returned something else than one result per item."""
        return hasattr(self, "returned")

    def prune(self) -> list[Slice]:
        """Remove and return the slices that are not wanted any more; its search goes on."""
        gone = [piece for piece in self.slices if not is_wanted(piece)]
        if gone:
            self.slices[:] = [piece for piece in self.slices if is_wanted(piece)]
            items = sum([stop - start for _, start, stop in gone])
            self.size -= items
            if self.search is not None:
                self.search.lost(items)
        return gone

    def as_it_ran(self) -> Batch:
        """Return a copy that keeps its slices, also those that `prune` removes here."""
        ran = copy(self)
        ran.slices = [*self.slices]
        return ran

    def become(self, part: Batch) -> None:
        """Run as `part` of what it has been; the others run by themselves."""
        self.slices[:] = part.slices
        self.size, self.reason = part.size, part.reason
        self.search, self.least_shapes = part.search, part.least_shapes

    def run(self, collator: Collates) -> Any:
        """Return what the batch function returns for the batch's items."""
        # The call gets no name here: an error of its function would keep it alive.
        return self.slices[0][0].function.__wrapped__(collator.collate(self))

    def split(self, outputs: Any, collator: Collates) -> list[Any]:
        """Return the part of each slice, as the collator splits them; a part may be an exception.

        Parts of lists are in their places then. That needs no lock: no other batch has these places.
        """
        try:
            parts = collator.split(outputs, self)
        except Exception as error:  # also of the class of what the function has returned
            if not self.is_misanswered and not is_out_of_memory(error):  # of the copies
                self.returned = None
            raise
        if self.has_lists:
            may_fail = self.may_fail
            for at, (call, start, stop) in enumerate(self.slices):
                part = parts[at]
                # Else the part itself is an error, an earlier part failed, or the caller has left.
                if (
                    stop - start < call.size
                    and call.missing
                    and not (may_fail and issubclass(type(part), BaseException))
                ):
                    if call.results is None:
                        collator.place((call, start, stop), part)
                    else:
                        call.results[start:stop] = part
        return parts

    def first_error(self, piece: Slice, rows: list[Any], failed: list[int]) -> BaseException:
        """Return the error of the first item, in its caller's list, of those of a slice that `failed`."""
        call, start, _ = piece
        place, at = min((call.place_of(start + at), at) for at in failed)
        self._failed_at = self._failed_at or {}
        self._failed_at[piece] = place
        error: BaseException = rows[at]
        return error

    def answer(self, parts: list[Any], collator: Collates) -> list[Call]:
        """Hand each call its part, as `split` has returned them; return the calls that are now done."""
        done: list[Call] = []
        owners: dict[int, Call | None] | None = None
        may_fail = self.may_fail
        for at, (call, start, stop) in enumerate(self.slices):  # a `zip` takes longer to begin
            part = parts[at]
            items = stop - start
            is_failed = may_fail and issubclass(type(part), BaseException)  # as `is_error`, without a call
            if may_fail and (is_failed or call.keep_errors):
                if owners is None:
                    owners = self._owners(parts)
                _note_owner(call, part, owners)
            if items == call.size and not is_failed:
                if call.missing:  # else its caller has left
                    call.results = part
                    call.missing = 0
                    done.append(call)
            elif is_failed or not call.many:
                if self._answer_part(self.slices[at], part, collator):
                    done.append(call)
            elif call.missing:
                call.missing -= items
                if not call.missing:
                    done.append(call)
        return done

    def _owners(self, parts: list[Any]) -> dict[int, Call | None]:
        """Return by the id of each error the call, or whole list, that gets it; None for several."""
        owners: dict[int, Call | None] = {}
        for (call, _, _), part in zip(self.slices, parts, strict=True):
            for error in _errors_of(call, part):
                owners[error] = call.whole if owners.setdefault(error, call.whole) is call.whole else None
        return owners

    def _answer_part(self, piece: Slice, part: Any, collator: Collates) -> bool:
        """Give a call a part of its answer, or an error; return whether it is done now."""
        call, start, stop = piece
        if not call.many:  # two workers may have parts of one array, so these are placed here
            part = self._place(piece, part, collator) if stop - start < call.size else part
            self.failed += stop - start if is_error(part) else 0
        if is_error(part):
            return self._fail_part(piece, part)
        if not call.missing:  # its caller has left
            return False
        call.missing -= stop - start
        return not call.missing

    def _place(self, piece: Slice, part: Any, collator: Collates) -> Any:
        """Give a call of arrays one of its parts; return the part, or why it cannot be placed."""
        if piece[0].missing and not is_error(part):  # else an earlier part failed, or the caller has left
            try:
                collator.place(piece, part)
            except Exception as error:  # noqa: BLE001  for the caller of this call alone
                return error
        return part

    def _fail_part(self, piece: Slice, error: BaseException) -> bool:
        """Give a call an error for some of its items; return whether it is done now."""
        call, start, stop = piece
        if call.error is not None:  # an item before those that have failed may have failed now
            self._keep(call.error)
        place = None if self._failed_at is None else self._failed_at.get(piece)
        return call.fail_part(start, stop, error, place)

    def _keep(self, replaced: Any) -> None:
        """Keep what an error has `replaced`, items or an error, until the lock is free."""
        if self._overwritten is None:
            self._overwritten = []
        self._overwritten.append(replaced)

    def fail(self, error: BaseException, collator: Collates) -> list[Call]:
        """Answer each call with `error`; return the calls that are now done."""
        done = []
        is_own = len({call.whole for call in self.calls}) == 1
        for piece in self.slices:
            call, start, stop = piece
            _note_owner(call, error, {id(error): call.whole if is_own else None})
            if not call.many or not call.keep_errors:
                if self._fail_part(piece, error):
                    done.append(call)
            elif call.missing:
                self._keep(collator.collate(Batch([piece], stop - start)))
                collator.place(piece, [error] * (stop - start))
                call.missing -= stop - start
                if not call.missing:
                    done.append(call)
        self.failed = self.failed + len(done) if self.begun else self.size  # some may have ended before
        return done


def _errors_of(call: Call, part: Any) -> set[int]:
    """Return the ids of the errors that a part has for its call."""
    if is_error(part):
        return {id(part)}
    if call.keep_errors and call.many and isinstance(part, list):
        return {id(row) for row in part if is_error(row)}
    return set()


def _note_owner(call: Call, part: Any, owners: dict[int, Call | None]) -> None:
    """Note whether no other caller has the errors of a part of `call`, nor those that it had before."""
    if call.missing and (errors := _errors_of(call, part)):  # else its caller may be looking
        is_own = all(owners[error] is call.whole for error in errors)
        call.owns_error = is_own and getattr(call, "owns_error", True)


def copies_of(batch: Batch) -> int:
    """Return how many copies the function is given behind the items."""
    return batch.copies[0] if hasattr(batch, "copies") else 0


def is_wanted(piece: Slice) -> bool:
    """Whether the answers of these items matter to a caller."""
    call, start, stop = piece
    return bool(call.missing) and (call.error is None or bool(call.before(call.failed_at, start, stop)))
