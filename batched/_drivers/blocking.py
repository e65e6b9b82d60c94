"""Warns of a call that blocks an event loop: it works, but no other task can join its batch."""

from __future__ import annotations

import sys
import warnings

from batched.errors import BlockingCallWarning

__all__ = ["warn_of_blocking"]


def warn_of_blocking(name: str, blocking: str, instead: str) -> None:
    """Warn the user's line that `blocking` holds up the event loop, and say what to write `instead`.

    Not under IPython and Jupyter, whose loop runs around every cell.
    """
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if get_ipython is not None and get_ipython() is not None:
        return
    level = 2
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("batched._"):
        frame = frame.f_back
        level += 1
    warnings.warn(
        f"{name}: `{blocking}` blocks the event loop that runs in this thread: until the answer is there, no "
        f"other task can run, so none can join the batch; write `{instead}`",
        BlockingCallWarning,
        stacklevel=level,
    )
