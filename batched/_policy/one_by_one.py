"""Whether items run one by one, where the function fails for several of them at once."""

from __future__ import annotations

from batched._policy.search import Search

_TRY_AFTER = 16  # items that have run alone: a batch is tried again, which costs a sixteenth of that ...
_TRY_AFTER_TIMES = 10  # ... and a tenth of their time, ...
_TRY_ALWAYS_S = 0.002  # ... if it is a time that can be felt, ...
_TRY_AFTER_ALL = 256  # ... but after so many items in any case


class OneByOne:
    """Whether items run one by one, as the function fails for several of them at once.

    It begins after searches in which all items worked, where these took more runs than single items would
    have. One such failure may be chance, as where two items share a batch. Now and then a batch is tried as a
    whole. It ends when one works, or fails because of an item that fails alone.
    """

    def __init__(self) -> None:
        self.is_on: bool = False
        self._failures = 0  # of several items at once, though each of them works
        self._alone = 0
        self._alone_s = 0.0
        self.failed_s: float = 0.0
        """How long the last batch took that failed so."""

    @property
    def is_alert(self) -> bool:
        """Whether it matters that a batch works."""
        return self._failures > 0

    @property
    def tries(self) -> bool:
        """Whether the next batch is to run as a whole."""
        if not self.is_on or self._alone >= _TRY_AFTER_ALL:
            return True
        is_cheap = self.failed_s <= _TRY_ALWAYS_S or self._alone_s >= _TRY_AFTER_TIMES * self.failed_s
        return self._alone >= _TRY_AFTER and is_cheap

    def searched(self, search: Search) -> bool:
        """Note that all items of a search worked; return whether it is more than one error that passed."""
        self._failures += search.failures
        self._alone, self._alone_s, self.failed_s = 0, 0.0, search.duration
        is_repeated = self._failures > 1
        self.is_on = is_repeated and search.runs > search.units
        return is_repeated or not search.parts_worked

    def worked(self, duration: float, *, is_single: bool) -> None:
        """Note that a batch has worked, which was no part of one that failed."""
        if is_single:
            self._alone += 1
            self._alone_s += duration
        else:
            self.end()

    def end(self) -> None:
        """Have batches run as a whole again."""
        self.is_on = False
        self._failures = 0
