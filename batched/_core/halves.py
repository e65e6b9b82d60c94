"""Parts of a batch, which run in its place: of one that failed, or of one that is divided beforehand."""

from __future__ import annotations

from itertools import accumulate, pairwise

from batched._core.batch import Batch
from batched._core.call import Slice
from batched._policy.search import Search
from batched._policy.window import StartReason


class Half(Batch):
    """A part of a batch."""

    __slots__ = ("behind", "error", "precedes_other_half")

    def __init__(
        self, slices: list[Slice], size: int, error: BaseException | None, search: Search | None
    ) -> None:
        super().__init__(slices, size, StartReason.RETRY)
        self.error = error
        """What its calls have met: they get it if the search is given up."""
        self.search = search
        self.behind: Batch | None = None
        """A batch that is to end before this one runs."""
        self.precedes_other_half: bool = False
        """Whether it is the first of two halves."""

    def may_start(self) -> bool:
        """Whether the calling worker may run it."""
        return True

    def clear(self) -> None:
        """Drop the references to the calls, and to the errors: a traceback leads to their items."""
        super().clear()
        self.error = self.search = self.behind = None


class Aside(Half):
    """A batch of calls that never were in the queue: it runs before those, and counts and teaches nothing."""

    __slots__ = ()

    def prune(self) -> list[Slice]:
        """Remove nothing: it runs for more than its callers."""
        return []


def halves_of(batch: Batch, error: BaseException | None, search: Search | None) -> list[Half]:
    """Return two batches of its items, one or none if there are no more.

    A call is cut only where it is alone, and then both parts are padded as the batch was: outputs of one
    call that were padded to different lengths need not be alike.
    """
    slices = batch.slices
    ends = list(accumulate(stop - start for _, start, stop in slices))
    if not ends:
        return []
    size = ends[-1]
    between = [
        end
        for end, (piece, following) in zip(ends, pairwise(slices), strict=False)
        if piece[0] is not following[0]
    ]
    middle = min(between, key=lambda end: abs(2 * end - size), default=size // 2)
    found = [half for half in cut_at(batch, middle, error, search) if half.size]
    if not between:
        for half in found:
            half.least_shapes = batch.shapes or batch.least_shapes  # it may have yet to run
    found[0].precedes_other_half = len(found) > 1
    return found


def cut_at(
    batch: Batch, middle: int, error: BaseException | None, search: Search | None
) -> tuple[Half, Half]:
    """Return two batches: of so many of its items, and of the others."""
    parts: tuple[list[Slice], list[Slice]] = [], []
    end = 0
    for call, start, stop in batch.slices:
        end += stop - start
        cut = min(max(stop - end + middle, start), stop)
        for part, begin, to in ((parts[0], start, cut), (parts[1], cut, stop)):
            if begin < to:
                part.append((call, begin, to))
    return Half(parts[0], middle, error, search), Half(parts[1], end - middle, error, search)


def singles_of(batch: Batch, error: BaseException | None, search: Search | None) -> list[Half]:
    """Return a batch for each call, or for each item of the only list, if it matters which of them fails."""
    singles: list[Half] = []
    for half in halves_of(batch, error, search):
        singles += singles_of(half, error, search) if half.is_divisible else [half]
    return singles


def one_ahead(batch: Batch, at: int, search: Search) -> list[Half]:
    """Return a batch of the call, or the item of the only list, `at` this place, and one of the rest."""
    call, start, stop = batch.slices[at if batch.has_several else 0]
    rest = [piece for piece in batch.slices if piece != (call, start, stop)]
    if not batch.has_several:
        rest = [(call, start, start + at), (call, start + at + 1, stop)]
        rest = [piece for piece in rest if piece[1] < piece[2]]
        start, stop = start + at, start + at + 1
    first = Half([(call, start, stop)], stop - start, None, search)
    others = Half(rest, batch.size - first.size, None, search)
    first.reason = others.reason = batch.reason
    return [first, others]
