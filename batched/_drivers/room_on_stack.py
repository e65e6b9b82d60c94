"""Whether the stack of a caller has room for a step of a batcher."""

from __future__ import annotations

_STEP = 32  # frames: the deepest step that was measured has 16


def check_stack(frames: int = _STEP) -> None:
    """Raise `RecursionError` here, where nothing has begun, if a caller's stack has no room for a step.

    In the middle of a step it could leave the lock held, or break the queue of all callers.
    """
    if frames:
        check_stack(frames - 1)
