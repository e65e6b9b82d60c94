"""Dynamic batching: callers pass one item or a list, and their calls share the batches of one worker."""

from batched import aio, inference, typing
from batched._api.lists import BatchedFunction, dynamically
from batched._api.streams import AsyncStream, Stream
from batched._core.call import DONE, Done
from batched._core.stats import Stats
from batched._drivers.current_batch import CurrentBatch, current_batch
from batched.errors import (
    BatchError,
    BlockingCallWarning,
    ClosedError,
    OverloadError,
    QueueFullError,
    SlowConsumerError,
)

__version__: str = "0.2.0.dev0"

__all__ = [
    "DONE",
    "AsyncStream",
    "BatchError",
    "BatchedFunction",
    "BlockingCallWarning",
    "ClosedError",
    "CurrentBatch",
    "Done",
    "OverloadError",
    "QueueFullError",
    "SlowConsumerError",
    "Stats",
    "Stream",
    "aio",
    "current_batch",
    "dynamically",
    "inference",
    "typing",
]
