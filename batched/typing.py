"""Types to annotate with, beside those of `batched`: nothing here is called.

Of decorated functions (those of `batched.aio` have the same names there), of options, of features, and of the
parts of `Stats` and `WorkersStats`.
"""

from __future__ import annotations

from batched._api.lists import BatchedColumns, BatchedMethod, ManyColumns, StreamingFunction
from batched._api.map_types import Answers, AsyncAnswers
from batched._api.option_types import CallChanges, Changes
from batched._api.signatures import Method
from batched._api.workers import WorkerStats
from batched._core.option_checks import Cache
from batched._core.options import OnFull, PaddingSide, Priority
from batched._core.stats import Distribution, Padding
from batched._drivers.worker_pool import FunctionShare
from batched._policy.window import Learned
from batched.inference import Feature, Features

__all__ = [
    "Answers",
    "AsyncAnswers",
    "BatchedColumns",
    "BatchedMethod",
    "Cache",
    "CallChanges",
    "Changes",
    "Distribution",
    "Feature",
    "Features",
    "FunctionShare",
    "Learned",
    "ManyColumns",
    "Method",
    "OnFull",
    "Padding",
    "PaddingSide",
    "Priority",
    "StreamingFunction",
    "WorkerStats",
]
