"""The one clock of this package."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import module_from_spec
from typing import Any


def _own_monotonic() -> Callable[[], float]:
    """Return `time.monotonic` of a copy of the module that this package alone has.

    Tests replace the clock that they find in all modules (freezegun does) by one that stands still, or is set
    to another day. Workers and timers wait in true time: by that clock a batch would never be due.
    """
    spec: Any = time.__spec__
    own = module_from_spec(spec)
    spec.loader.exec_module(own)
    clock: Callable[[], float] = own.monotonic
    return clock


monotonic: Callable[[], float] = _own_monotonic()
"""Return the seconds of a clock that only goes forward."""


def is_replaced() -> bool:
    """Whether Python's own clock, which asyncio's event loops follow, is not this one at present."""
    return not -1.0 < time.monotonic() - monotonic() < 1.0
