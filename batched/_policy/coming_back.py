"""When callers that were refused may come back, and how many places are kept for them.

They are given different times, as many as the function can answer, so that they wait in a line of their own.
But callers that come for the first time would take their places. So calls that say they have come back
(`attempt`) are counted, and as many places are kept as came back of late. When one of them is refused all the
same, the next callers are given times further apart; if no call says so, when many calls are refused.
"""

from __future__ import annotations

_LONGEST_S = 60.0  # after which a caller may come back
_LATELY = 1 / 16  # the weight of one batch in what came back of late
_FURTHER, _CLOSER = 1.1, 1.01
_MOST_SPACING = 64.0
_SPACING_WHERE_FULL = 8.0  # beyond, callers would wait for long and find room little more often
_FEW = 1 / 20  # of the items of a batch: if more are refused, callers come back too soon


class ComingBack:
    """The times at which callers may come back, and how many do between two batches."""

    def __init__(self) -> None:
        self._promised = 0.0  # the last of the times
        self._spacing = 1.0  # relative to what the items take
        self._came = self._again = 0  # items since the last batch that came back, and that were refused again
        self._each_batch = 0.0  # items that came back between two batches, of late

    def came(self, items: int) -> None:
        """Note that a call of so many items has come back."""
        self._came += items

    def refused_again(self, items: int) -> None:
        """Note that such a call was refused."""
        self._again += items

    def expected(self, batches: float) -> int:
        """Return how many items will come back until so many batches have run."""
        return round(self._each_batch * batches)

    def started(self, refused: int, items: float, most: int, *, is_full: bool = False) -> None:
        """Note a batch, which has some `items`, `most` at most: so many were refused since the last one.

        Where the queue `is_full`, calls were refused for want of room: those that come back first find it.
        """
        # For more than a batch there are no places, however many come, or however often the same ones do.
        self._each_batch += _LATELY * (min(self._came, most) - self._each_batch)
        is_too_soon = self._again > 0 if self._each_batch >= 1.0 else refused > _FEW * items
        is_too_soon = is_too_soon or (is_full and self._spacing < _SPACING_WHERE_FULL)
        spacing = self._spacing * _FURTHER if is_too_soon else self._spacing / _CLOSER
        self._spacing = min(max(spacing, 1.0), _MOST_SPACING)
        self._came = self._again = 0

    def all_came(self) -> None:
        """Forget the times: nothing waits, so the next caller may come at once."""
        self._promised = 0.0

    def after_s(self, shorter_s: float, takes_s: float, now: float, *, has_place: bool = True) -> float:
        """Return after how long a caller may come back: what waits has to be shorter by so many seconds.

        The items of its call take `takes_s`. The next caller has its turn after that, if this one `has_place`
        in the line of all.
        """
        promised = max(self._promised, now + max(shorter_s, 0.0))  # other threads may change it meanwhile
        if promised > now + _LONGEST_S:  # not all callers come back
            promised = now + _LONGEST_S / 2
        if has_place:
            self._promised = promised + takes_s * self._spacing
        return promised - now
