"""Asking an asynchronous cache: the caller awaits `get` before its call is queued, and `set` afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batched._drivers.wakeups import within

if TYPE_CHECKING:
    from batched._api.driver import Driver

__all__ = ["answer_with_cache"]


async def answer_with_cache(batcher: Driver, call: Any, name: str, *, waits: bool = False) -> None:
    """Ask the cache, run the misses, and store their results; raise the error that the caller is to get.

    `get` counts into the deadline. `set` is given up at the deadline: the results are there already.
    """
    batcher.check()
    collator = call.collator
    try:
        collator.watch(call)
        in_time = await within(call.deadline, collator.look(call))
        if not in_time or not call.missing:
            batcher.count_cached(call)
            if call.missing:
                call.left = "expired"
                raise TimeoutError(call.overdue(name))
            return
        batcher.post_async(call, waits)
        try:
            await call.wait()
        except BaseException:
            batcher.cancel(call)
            raise
        await within(call.deadline, collator.keep(call))
        if call.missing or call.error is not None:
            batcher.refuse(call)
    finally:
        call.watches.clear()  # an error's traceback may keep the call, but must not keep them
