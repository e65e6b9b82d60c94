"""Batchers with another window than their own, or a fixed size, to be compared with what ships."""

from __future__ import annotations

from typing import Any, TypeVar

from batched._core.batcher import Batcher
from batched._features.best_size import BestSizes
from batched._features.waiting import Waiting

_FeatureT = TypeVar("_FeatureT")


def use_window(batcher: Batcher, window: Any) -> None:
    """Have the batcher hold batches back as long as `window` says."""
    _feature(batcher, Waiting).use(window)


def fix_size(batcher: Batcher) -> None:
    """Have the batcher learn no size of batches, but all else."""
    sizes = _feature(batcher, BestSizes)
    sizes.sizes = sizes.limit = None
    sizes.have()
    batcher.resize()


def _feature(batcher: Batcher, kind: type[_FeatureT]) -> _FeatureT:
    return next(each for each in batcher._features if isinstance(each, kind))  # noqa: SLF001
