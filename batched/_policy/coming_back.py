"""When callers that were refused may come back.

They are given different times, as many as the function can answer, so that they do not come back at once. But
others come for the first time meanwhile. So while many calls are refused, the times are further apart.
"""

from __future__ import annotations

from math import ceil, inf

_SHORTEST_S, _LONGEST_S = 0.001, 60.0  # after which a caller may come back
_MARGIN = 0.15  # batches: so much later than it is expected to start, a batch has started in most cases
_ROUNDING = 1e-6  # batches
_FURTHER, _CLOSER = 1.1, 1.01
_MOST_SPACING = 64.0
_SPACING_WHERE_FULL = 8.0  # beyond, callers would wait for long and find room little more often
_MOST_REFUSED = 1 / 20  # of the items of a batch: if more are refused, callers come back too soon


class ComingBack:
    """The times at which callers may come back."""

    def __init__(self) -> None:
        self._promised = 0.0  # the last of the times
        self._spacing = 1.0  # relative to what the items take

    def started(self, refused: int, items: float, *, is_full: bool = False) -> None:
        """Note a batch, which has some `items`: so many were refused since the last one.

        Where the queue `is_full`, calls were refused for want of room: those that come back first find it.
        """
        is_too_soon = refused > _MOST_REFUSED * items or (is_full and self._spacing < _SPACING_WHERE_FULL)
        spacing = self._spacing * _FURTHER if is_too_soon else self._spacing / _CLOSER
        self._spacing = min(max(spacing, 1.0), _MOST_SPACING)

    def all_came(self) -> None:
        """Forget the times: nothing waits, so the next caller may come at once."""
        self._promised = 0.0

    def after_s(self, shorter_s: float, takes_s: float, now: float, *, has_place: bool = True) -> float:
        """Return after how long a caller may come back: what waits has to be shorter by so many seconds.

        The items of its call take `takes_s`. The next caller has its turn after that, if this one `has_place`
        in the line of all.
        """
        return max(self._turn_s(max(shorter_s, 0.0), takes_s, now, inf if has_place else 0.0), _SHORTEST_S)

    def room_after_s(
        self, missing_s: float, takes_s: float, left_s: float, cycle_s: float, now: float
    ) -> float:
        """Return after how long a caller finds room in a full queue.

        The items that are too many take `missing_s`, those of its call `takes_s`. The next batch starts in
        `left_s`, and one more every `cycle_s`. Each makes room for what it takes, until other calls come.
        So a caller comes just after the start of the batch with which there is room for its last item.
        """
        earliest_s = left_s - cycle_s + missing_s - takes_s
        last_s = self._turn_s(earliest_s, takes_s, now, takes_s + cycle_s) + takes_s
        batches = max(ceil((last_s - left_s) / cycle_s - _ROUNDING), 0)
        return min(max(left_s + (batches + _MARGIN) * cycle_s, _SHORTEST_S), _LONGEST_S)

    def _turn_s(self, earliest_s: float, takes_s: float, now: float, most_s: float) -> float:
        """Return after how long a caller has its turn in the line of all; the next has it `most_s` later."""
        promised = max(self._promised, now + earliest_s)  # other threads may change it meanwhile
        if promised > now + _LONGEST_S:  # not all callers come back
            promised = now + _LONGEST_S / 2
        if most_s:
            self._promised = promised + min(takes_s * self._spacing, most_s)
        return promised - now
