"""Dynamic batching: callers pass one item or a list, and share the batches of one worker."""

from batched._call import DONE
from batched._current import CurrentBatch, current_batch
from batched._function import BatchedFunction, dynamically
from batched._stats import Stats
from batched.errors import BatchError, ClosedError, QueueFullError

__all__ = [
    "DONE",
    "BatchError",
    "BatchedFunction",
    "ClosedError",
    "CurrentBatch",
    "QueueFullError",
    "Stats",
    "current_batch",
    "dynamically",
]
