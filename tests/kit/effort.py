"""How often a test does again what goes wrong rarely."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["FULL", "QUICK", "times"]

FULL = 100
"""The examples of the profile `soak`, in which every test has its full number."""
QUICK = 25
"""The examples of the profile that is used by default."""


def times(full: int) -> int:
    """Return the full number with `--hypothesis-profile=soak`, and a quarter of it without."""
    return max(1, full * settings.default.max_examples // FULL)
