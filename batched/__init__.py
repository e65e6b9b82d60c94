"""Dynamic batching: callers pass one item or a list, and share the batches of one worker."""

from batched import aio, inference
from batched._call import DONE, Done
from batched._current import CurrentBatch, current_batch
from batched._function import BatchedFunction, dynamically
from batched._stats import Stats
from batched._stream import AsyncStream, Stream
from batched.errors import BatchError, BlockingCallWarning, ClosedError, QueueFullError, SlowConsumerError

__all__ = [
    "DONE",
    "AsyncStream",
    "BatchError",
    "BatchedFunction",
    "BlockingCallWarning",
    "ClosedError",
    "CurrentBatch",
    "Done",
    "QueueFullError",
    "SlowConsumerError",
    "Stats",
    "Stream",
    "aio",
    "current_batch",
    "dynamically",
    "inference",
]
