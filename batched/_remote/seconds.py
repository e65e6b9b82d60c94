"""How long something may take at most, as a user says it."""

from __future__ import annotations

from typing import Any

from batched._core.option_checks import as_float

_MOST_S = 604_800.0


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds, a week at most: the system takes no time that is endless.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, no number by its value, or too large.

    """
    number = as_float(name, value, "a number of seconds")
    if not 0 <= number <= _MOST_S:
        raise ValueError(f"{name} must be a number of seconds from 0 to {_MOST_S:g} (a week), got {value!r}")
    return number
