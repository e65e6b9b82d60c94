"""The event loop of a worker thread, for `async def` batch functions."""

from __future__ import annotations

import asyncio
from contextvars import Context


def new_runner() -> asyncio.Runner:
    """Return a runner that keeps nothing of the batch for which it is made: it would keep its context."""
    runner = asyncio.Runner()
    Context().run(runner.get_loop)
    return runner
