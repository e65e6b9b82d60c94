"""What a batcher has learned, as numbers, which keep neither it nor its event loop alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batched._policy.window import Learned


@dataclass(frozen=True, slots=True)
class Lessons:
    """What one batcher, or several together, have learned."""

    cohorts: int = 0
    """After how many batches it was seen what their callers did next: the more, the more was learned."""
    learned: Learned | None = None
    fits: int | None = None
    """The most items of a batch as far as memory is known to go."""
    best: int | None = None
    """The most items of a batch where fewer than `batch_size` serve better."""


NOTHING = Lessons()


def together(lessons: Sequence[Lessons]) -> Lessons:
    """Return the least sizes, and the costs of the batcher that has learned most."""
    most = max(lessons, key=lambda each: each.cohorts, default=NOTHING)
    return Lessons(
        cohorts=most.cohorts,
        learned=most.learned,
        fits=min([each.fits for each in lessons if each.fits is not None], default=None),
        best=min([each.best for each in lessons if each.best is not None], default=None),
    )


def of_all(here: Sequence[Lessons], gone: Lessons) -> Lessons:
    """Return what is known `here`, with that of a loop which is `gone` until one here has learned as much."""
    known = together(here)
    return together([known, gone]) if known == NOTHING or gone.cohorts > known.cohorts else known
