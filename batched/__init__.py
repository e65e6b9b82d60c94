"""Dynamic batching: callers pass one item or a list, and their calls share the batches of one worker."""

from typing import TYPE_CHECKING, Any

from batched import aio, inference, typing
from batched._api.deadline import deadline
from batched._api.lists import BatchedFunction, dynamically
from batched._api.streams import AsyncStream, Stream
from batched._api.workers import Workers, WorkersStats
from batched._core.batch_record import BatchRecord
from batched._core.change import DONE, Change, Done
from batched._core.stats import Stats
from batched._drivers.current_batch import CurrentBatch, current_batch
from batched._drivers.current_worker import Worker, current_worker
from batched.errors import (
    BatchError,
    BlockingCallWarning,
    ClosedError,
    DisconnectedError,
    OverloadError,
    QueueFullError,
    RestartWorker,
    SlowConsumerError,
)

if TYPE_CHECKING:
    from batched._remote.client import connect
    from batched._remote.serving import serve

__version__: str = "0.2.0.dev0"

__all__ = [
    "DONE",
    "AsyncStream",
    "BatchError",
    "BatchRecord",
    "BatchedFunction",
    "BlockingCallWarning",
    "Change",
    "ClosedError",
    "CurrentBatch",
    "DisconnectedError",
    "Done",
    "OverloadError",
    "QueueFullError",
    "RestartWorker",
    "SlowConsumerError",
    "Stats",
    "Stream",
    "Worker",
    "Workers",
    "WorkersStats",
    "aio",
    "connect",
    "current_batch",
    "current_worker",
    "deadline",
    "dynamically",
    "inference",
    "serve",
    "typing",
]

if not TYPE_CHECKING:  # else any name would be one of this module

    def __getattr__(name: str) -> Any:
        """Return what is imported only where it is used: most processes neither serve nor connect."""
        if name == "connect":
            from batched._remote.client import connect  # noqa: PLC0415

            return connect
        if name == "serve":
            from batched._remote.serving import serve  # noqa: PLC0415

            return serve
        import sys  # noqa: PLC0415
        from importlib.util import find_spec  # noqa: PLC0415

        whole, is_public = f"{__name__}.{name}", name.isidentifier() and name[0] != "_"
        # A test may have put something into `sys.modules` of which `find_spec` cannot tell.
        is_module = is_public and (whole in sys.modules or find_spec(whole) is not None)
        remedy = f": it is a module, so `import {whole}`" if is_module else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{remedy}")


def __dir__() -> list[str]:
    """Return the names of the module, with those that are not imported yet."""
    return sorted({*globals(), *__all__})
