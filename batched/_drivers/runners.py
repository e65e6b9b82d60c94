"""The event loops of worker threads, for `async def` batch functions."""

from __future__ import annotations

import _thread
import asyncio
from contextvars import Context

from batched._logs import log_error

_inherited: list[object] = []


class Runners(dict[int, asyncio.Runner]):
    """What runs the event loop of each worker thread that has one, by the id of the thread."""

    def here(self) -> asyncio.Runner:
        """Return that of this thread."""
        me = _thread.get_ident()
        runner = self.get(me)
        if runner is None:
            runner = self[me] = asyncio.Runner()
            Context().run(runner.get_loop)  # it would keep the context of the batch for which it is made
        return runner

    def close_here(self, name: str) -> None:
        """Close that of this thread, a worker of this name, which ends."""
        runner = self.pop(_thread.get_ident(), None)
        if runner is not None:
            try:
                runner.close()
            except BaseException:  # noqa: BLE001  of a task that a function has left behind
                log_error("%s: could not close a worker's event loop", name)

    def after_fork(self) -> None:
        """Forget all. Closing an inherited loop would take its file descriptors out of the parent's epoll."""
        _inherited.append(dict(self))
        self.clear()
