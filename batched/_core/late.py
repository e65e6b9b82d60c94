"""Items that no caller waits for any more, as a deadline has passed while they ran."""

from __future__ import annotations

from batched._core.call import Call, Slice


def has_expired(call: Call) -> bool:
    """Whether no caller waits for `call` any more, because of a deadline.

    A caller that has just left is in the inbox: its batch may end before the call is dropped with its parts.
    """
    return call.left == "expired" or (call.parent is not None and call.parent.has_expired)


def late_items(piece: Slice) -> int:
    """Return how many items of a slice that has run are late: all or none."""
    call, start, stop = piece
    return stop - start if has_expired(call) else 0
