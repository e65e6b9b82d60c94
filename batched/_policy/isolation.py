"""Is it an item, or the surroundings? Whether a batch that failed is worth running again in parts."""

from __future__ import annotations

from math import ceil, log2

_MORE_FAILURES = 3  # in a row than the halvings that single out one item
_TIMES_ITS_OWN = 4  # what failures may cost beyond what successes have, in the time of the batch itself
_ALWAYS_ALLOWED_S = 0.25  # failures that take no longer in all are no outage that a caller would feel


class Isolation:
    """The search for the items that make a batch fail, and what it has cost so far.

    It is given up once failures in a row, or their cost, are more than single items would explain. Runs that
    work cost nothing: they would have been needed in any case.
    """

    def __init__(self, size: int, duration: float) -> None:
        """Begin with a batch of `size` items that has failed after `duration` seconds."""
        self.is_given_up: bool = False
        self._has_worked = False
        self._in_a_row = 0
        self._spent_s = 0.0
        self._most_in_a_row = ceil(log2(size)) + _MORE_FAILURES
        self._left_s = max(_TIMES_ITS_OWN * duration, _ALWAYS_ALLOWED_S)

    def worked(self, duration: float) -> None:
        """Note that a part has worked."""
        self._has_worked = True
        self._in_a_row = 0
        self._left_s += duration

    def failed(self, error: BaseException, duration: float, *, is_single: bool = False) -> None:
        """Note that a part has raised `error`; one that `is_single` is found, which is no step astray."""
        self._in_a_row += not is_single
        self._spent_s += duration
        self._left_s -= duration
        is_long = self._in_a_row >= self._most_in_a_row and self._spent_s > _ALWAYS_ALLOWED_S
        if is_long or self._left_s <= 0.0 or is_of_surroundings(error):
            self.is_given_up = True

    @property
    def found_nothing(self) -> bool:
        """Whether it is given up, and no item has worked: then it is no item that makes batches fail."""
        return self.is_given_up and not self._has_worked


def is_of_surroundings(error: BaseException) -> bool:
    """Whether `error` is about a connection, a time or the system, so that no item is to blame.

    An error about a file, or about what is in one, is not: the item may name that file.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno is not None and error.filename is None
