"""Dynamic batching: callers pass one item or a list, and share the batches of one worker."""

from batched._function import BatchedFunction, dynamically
from batched._stats import Stats
from batched.errors import BatchError, ClosedError

__all__ = ["BatchError", "BatchedFunction", "ClosedError", "Stats", "dynamically"]
