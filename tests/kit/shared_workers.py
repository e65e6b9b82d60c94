"""Has all functions with one worker thread use a `batched.Workers`: each suite holds that to its rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import batched
from batched._drivers.thread import ThreadDriver

OWN_WORKERS = "OwnWorkers"
"""How `pytest --without` names the threads that each function has for itself."""


def share_workers() -> None:
    """Give each function a `batched.Workers` of one worker, from now on."""
    begin: Any = ThreadDriver.__init__

    def with_workers(driver: Any, options: Any, *arguments: Any, **named: Any) -> None:
        if options.workers is None and options.max_concurrent_batches == 1:
            options = replace(options, workers=batched.Workers(1))
        begin(driver, options, *arguments, **named)

    ThreadDriver.__init__ = with_workers  # type: ignore[method-assign]
