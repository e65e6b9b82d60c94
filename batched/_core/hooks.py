"""How a feature takes part in the way of calls: what it can be asked and told, and when.

| hook | asked or told |
|---|---|
| `door(call, now)` | a call with a deadline is about to come, without the lock: it may raise |
| `queued(calls)` | these calls are about to be in the queue |
| `look(now)` | before each decision on the next batch; it may expire calls |
| `urgent(now)` | asked for a call that has to be in the batch which starts now |
| `start(start, reason, now)` | asked when the next batch starts, and why: what it is given, or sooner |
| `room(queue, room, now)` | asked how many items the next batch has, at most: what it is given, or another |
| `took(batch, now)` | a batch is about to run, from the queue or from `River.first`; it may become less |
| `failed(batch, error, started, now)` | asked whether its items run again; then no other is asked |
| `ended(run)` | a run has ended |
| `answered(run)` | likewise; of runs in the midst of lists, which answer no call, only of lessons |
| `lesson(run)` | likewise, if it is one to learn from |

All but `door` with the lock. No hook is told which items join a batch that runs (`continuous`). A batcher
keeps, for each hook, the methods of the features that have it; mostly none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from batched._core.batch import Batch
from batched._core.options import Options
from batched._core.river import River

HOOKS = ("door", "queued", "look", "urgent", "start", "room", "took", "failed", "ended", "answered", "lesson")


@dataclass(slots=True, eq=False)
class Run:
    """A batch that has run, for all that learn from it."""

    batch: Batch
    started: float
    now: float
    answered: int
    """How many calls it has answered."""
    error: BaseException | None
    """What its function has raised, if it has."""
    _: KW_ONLY
    is_divided: bool = False
    """Whether its items run again."""
    is_lesson: bool = False


class Feature:
    """One thing that a batcher does besides: its state, and the hooks that it has at present."""

    hooks: tuple[str, ...] = ()
    """The hooks that it has at present; `have` changes them."""

    is_at_rest = True
    """Whether it learns nothing from one more run that is like the last ones."""

    limit: int | None = None
    """The most items of a batch, if that is for it to say."""

    river: River

    def begin(self, river: River, options: Options) -> None:
        """Begin anew, with an empty queue and nothing learned; `configure` takes the options."""
        self.river = river
        self.configure(options)

    def configure(self, options: Options) -> None:
        """Follow new options."""

    def resized(self, options: Options, size: int) -> None:
        """Note that a batch has at most `size` items from now on."""

    def have(self, *hooks: str) -> None:
        """Have these hooks from now on, and no others."""
        if hooks != self.hooks:
            self.hooks = hooks
            self.river.hook()

    def lessons(self) -> Mapping[str, Any]:
        """Return what it has learned, by the fields of `Lessons`."""
        return {}

    def figures(self) -> Mapping[str, Any]:
        """Return what it adds to `stats`, by the fields of `Stats`."""
        return {}
