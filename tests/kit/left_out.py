"""Batchers of the drivers without some features, which shows what needs them: `pytest --without FEATURE`."""

from __future__ import annotations

from typing import Any

from batched._core.hooks import Feature
from batched._drivers import driver
from batched._features.best_size import BestSizes
from batched._parts.stack import features

KINDS: dict[str, type[Feature]] = {type(feature).__name__: type(feature) for feature in features("f")}
"""The kinds of features, by name."""

COUNTED: tuple[type[Feature], ...] = (BestSizes,)
"""Left out of each run: on a busy machine a batch may take so long that another size is tried, and tests
count batches. On a clock that is turned by hand they are there."""


def leave_out(names: list[str]) -> None:
    """Have the drivers for threads and for event loops build their batchers without these.

    A feature that another one needs is still made for it. Nothing asks or tells it, so that it knows nothing.
    """
    kinds = (*COUNTED, *(KINDS[name] for name in names))

    def without(name: str, **named: Any) -> list[Feature]:
        return [each for each in features(name, **named) if not isinstance(each, kinds)]

    driver.features = without  # type: ignore[attr-defined]
