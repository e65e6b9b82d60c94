"""When items join a batch that runs: at once, or several together.

When items join, the function begins with them: a model reads their prompts, for example. That takes
`fixed + each * joining` seconds, in which the items that are there get no further. Where `fixed` is much,
few joins of many items waste less of it, but leave places empty meanwhile, as a store that orders rarely has
empty shelves (the economic order quantity; Harris, 1913). Of `most` items at once `ends` end at each step, of
`step` seconds. If `k` join each time, that is every `k / ends` steps, and `most - k / 2` are there on
average. So

    (most - k / 2) / (step + each * ends + fixed * ends / k)

pieces are made per second, which is most for the positive root of
`(step + each * ends) * k**2 + 2 * fixed * ends * k = 2 * fixed * ends * most`.

While fewer items wait than there are places, that matters less: callers that come by themselves get no more
from more throughput, but would wait. So fewer are enough to join, by the share of places that are taken or
wanted. Where a step has a limit, no more than that are waited for.
"""

from __future__ import annotations

from math import sqrt

from batched._policy.batch_cost import BatchCost

_TRIES = 4  # steps in a row in which items have joined, while it is not known what a step takes without
_LOOKS = 64  # likewise, while it was known once


class Joining:
    """Learns what steps and joins take, and says how many items join."""

    def __init__(self) -> None:
        self._step = BatchCost()  # of a step in which none has joined, by its items
        self._join = BatchCost()  # that joining adds, by the items that join
        self._ends = 0.0  # per step
        self._steps = 0
        self._in_a_row = 0  # steps in which items have joined

    def stepped(self, live: int, joined: int, seconds: float, ended: int) -> None:
        """Learn from a step of `live` items, of which so many had `joined`, and so many `ended` with it."""
        self._steps += 1
        self._ends += (ended - self._ends) / min(self._steps, 50)
        if not joined:
            self._in_a_row = 0
            self._step.add(live, seconds)
            return
        self._in_a_row += 1
        if self._step.fixed:
            self._join.add(joined, max(seconds - self._step.fixed - self._step.each * live, 0.0))

    def room(self, live: int, most: int, waiting: int, limit: int | None = None) -> int:
        """Return how many of the `waiting` items join `live` ones, of which there may be `most`.

        That is as many as there is room for, and as the `limit` of one step allows, or none: they wait for no
        more than that. There must be room.
        """
        free = most - live
        limit = most if limit is None else limit
        joining = min(free, waiting, limit)
        if self._in_a_row >= (_LOOKS if self._step.fixed else _TRIES):
            return 0  # so that it is known what a step takes without
        if waiting >= free:
            enough = self._best(live, most)
        else:
            there = live + waiting
            enough = self._best(live, there) * there / most
        return joining if joining >= min(enough, limit) else 0

    def _best(self, live: int, most: int) -> float:
        """Return how many join best at once, if `most` items are there at most."""
        half = self._join.fixed * self._ends
        a = self._step.fixed + self._step.each * live + self._join.each * self._ends
        return (sqrt(half * half + 2 * a * half * most) - half) / a if half else 1.0
