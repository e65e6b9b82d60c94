"""What runs before the queue: parts of batches that are divided, and asides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from batched._core.batch import Batch
from batched._core.halves import Aside, Half, halves_of


class First(deque[Half]):
    """These batches, in their order; each runs before the queue, as soon as it may.

    Only calls that are due go ahead of an aside: of one that comes right after another.
    """

    __slots__ = ("aside_ran",)

    def __init__(self) -> None:
        super().__init__()
        self.aside_ran: bool = False
        """Whether an aside has run, and since then no batch of the queue."""

    def find(
        self, running: Container[Batch | None], most: int, prune: Callable[[Half], object]
    ) -> Half | None:
        """Return the batch that runs next; None if none may run now.

        It is behind no batch that is `running`. A part has `most` items at most, which may change; `prune`
        removes those of it that no caller wants.
        """
        while (part := self.ready(running)) is not None:
            if isinstance(part, Aside):
                return part
            prune(part)
            if 0 < part.size <= most:
                return part
            self.replace(part, halves_of(part, part.error, part.search))
        return None

    def ready(self, running: Container[Batch | None]) -> Half | None:
        """Return the batch that is to run next, as it is; None if each has to wait for another."""
        may_run = (part for part in self if part.behind not in running and part.may_start())
        found = next(may_run, None)
        if found is not None and self.yields(found):
            return next((part for part in may_run if not isinstance(part, Aside)), found)
        return found

    def yields(self, part: Half) -> bool:
        """Whether calls that are due go ahead of `part`."""
        return self.aside_ran and isinstance(part, Aside)

    def take(self, part: Half, running: dict[Batch, float], now: float) -> None:
        """Have `part` run: it is not here any more, and is `running`, unless it is an aside."""
        if isinstance(part, Aside):
            self.aside_ran = True
        else:
            running[part] = now  # before it is removed: so Ctrl-C loses no call
        self.remove(part)

    def replace(self, part: Half, parts: Sequence[Half]) -> None:
        """Have `parts` in the place of `part`; they wait for the end of the batch that it waits for."""
        at = self.index(part)
        for each in reversed(parts):
            each.behind = part.behind
            self.insert(at + 1, each)  # before the other is removed: so Ctrl-C loses no call
        del self[at]

    def put_again(self, batch: Batch, parts: Sequence[Half]) -> None:
        """Have `parts` of `batch`, which ran, come before the others, but behind its other half."""
        at = 1 if isinstance(batch, Half) and batch.precedes_other_half and self else 0
        for part in reversed(parts):
            self.insert(at, part)

    def divide(self, batch: Batch, parts: Sequence[Half]) -> None:
        """Have `batch`, which was taken, run as the first of its `parts`; the others come next."""
        self.extendleft(reversed(parts[1:]))
        batch.become(parts[0])

    @property
    def asides(self) -> list[Half]:
        """Those that never were in the queue."""
        return [each for each in self if isinstance(each, Aside)]

    @property
    def parts(self) -> list[Half]:
        """All others."""
        return [each for each in self if not isinstance(each, Aside)]

    @property
    def items(self) -> int:
        """How many items the parts have."""
        return sum([part.size for part in self.parts])
