"""Batchers with another window than their own, or a fixed size, to be compared with what ships."""

from __future__ import annotations

from typing import Any

from batched._core.batcher import Batcher
from batched._features.best_size import BestSizes
from batched._features.waiting import Waiting


def use_window(batcher: Batcher, window: Any) -> None:
    """Have the batcher hold batches back as long as `window` says."""
    batcher.feature(Waiting).use(window)


def fix_size(batcher: Batcher) -> None:
    """Have the batcher learn no size of batches, but all else."""
    sizes = batcher.feature(BestSizes)
    sizes.sizes = sizes.limit = None
    sizes.have()
    batcher.resize()
