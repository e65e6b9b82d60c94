"""How much a test does of what takes long: all of it in the profile `soak`, less of it by default."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, product
from typing import TypeVar

from hypothesis import settings

__all__ = ["FULL", "QUICK", "few", "is_thorough", "pairs", "times"]

T = TypeVar("T")
U = TypeVar("U")

FULL = 100
"""The examples of the profile `soak`, in which every test has its full number."""
QUICK = 10
"""The examples of the profile that is used by default."""


def times(full: int, part: int = 10) -> int:
    """Return the full number with `--hypothesis-profile=soak`; without, one in `part` of it: a tenth."""
    return full if is_thorough() else max(1, full // part)


def few(cases: Iterable[T], step: int) -> list[T]:
    """Return all cases with `--hypothesis-profile=soak`, and each `step`th without.

    Of a product a step that is smaller than its last factor, and has no divisor in common with it, leaves
    each value of both in some case.
    """
    return list(cases)[:: 1 if is_thorough() else step]


def pairs(first: Iterable[T], second: Iterable[U]) -> list[tuple[T, U]]:
    """Return all pairs with `--hypothesis-profile=soak`; without, each of `first` with one of `second`.

    Those of `second` take turns.
    """
    return list(product(first, second) if is_thorough() else zip(first, cycle(second), strict=False))


def is_thorough() -> bool:
    """Whether every test has its full number."""
    return settings.default.max_examples >= FULL
