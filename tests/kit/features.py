"""The features of a batcher, for tests and simulations that look at one, or put another in its place."""

from __future__ import annotations

from typing import Any, TypeVar

FeatureT = TypeVar("FeatureT")


def feature(batcher: Any, kind: type[FeatureT]) -> FeatureT:
    """Return the feature of this kind."""
    found: FeatureT = next(each for each in batcher._features if isinstance(each, kind))  # noqa: SLF001
    return found
