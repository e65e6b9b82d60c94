"""What a generator says of an item that has ended, and what it is told of its batch between two steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Done(Enum):
    """The type of `DONE`."""

    DONE = "DONE"

    def __repr__(self) -> str:
        return "batched.DONE"


DONE = Done.DONE
"""What a batch function that streams yields in place of a piece for an item that has ended."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What `yield` returns in a batch function with `continuous=True`; false if nothing has changed.

    ```python
    change = yield pieces
    if change:
        rows = [row for at, row in enumerate(rows) if at not in change.left]
        rows += prefill(change.joined)
    ```
    """

    left: tuple[int, ...] = ()
    """The positions, ascending, in the list of items of the step before, of those that are gone.

    They have ended or failed, their caller has left, or their deadline has passed.
    """
    joined: tuple[T, ...] = ()
    """The items that join; they stand behind those that remain.

    Of several arguments, each is a tuple, in the order of the parameters.
    """

    def __bool__(self) -> bool:
        return bool(self.left or self.joined)


NO_CHANGE: Change[object] = Change()
"""What is told of most steps."""

OVER: Change[object] = Change()
"""What is returned in the place of a change if the function is to end."""
