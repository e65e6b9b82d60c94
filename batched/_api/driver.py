"""The interface of drivers, as decorated functions use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from batched._core.batch import Collator
    from batched._core.call import Call
    from batched._core.options import Options
    from batched._core.stats import Stats

__all__ = ["Driver", "DriverT"]


class Driver(Protocol):
    """A batcher with a worker thread, or one on event loops."""

    @property
    def collator(self) -> Collator:
        """The collator that turns its calls into batches."""
        ...

    @property
    def options(self) -> Options:
        """The options, as last configured."""
        ...

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        ...

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        ...

    def check(self) -> None:
        """Raise if a call from here cannot be answered."""
        ...

    def check_outside(self) -> None:
        """Raise if this is inside the batch function, which would wait for its own end."""
        ...

    def post_async(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Queue `call` for the running task, unless `check` raises.

        The task then awaits `call.wait()`, until the call is answered or late. A `waits` call waits for
        room in a queue that is bounded and full, whatever the options say.
        """
        ...

    def open_async(self, call: Call) -> None:
        """Queue `call`, a stream: a task of the running loop will take its pieces as they come."""
        ...

    def count_cached(self, call: Call) -> None:
        """Count the items of a call that is not queued: the cache knew them all, or was too slow."""
        ...

    def cancel(self, call: Call) -> None:
        """Note that the caller of `call` has left."""
        ...

    def refuse(self, call: Call) -> NoReturn:
        """Raise the error of `call`, or that it is late."""
        ...

    async def aclose(self) -> None:
        """Take no more calls, run the queued ones, and return when nothing runs any more."""
        ...


DriverT = TypeVar("DriverT", bound=Driver)
