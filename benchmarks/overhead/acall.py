"""An idle round trip of one task through `acall`, beside a queue to a thread and one wake-up back."""

from __future__ import annotations

from typing import Any

from benchmarks.kit.bare import LoopHandOff, echo
from benchmarks.kit.callers import around_asynchronously
from benchmarks.kit.measure import Effort, one_core
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using


def _trip(contender: Any, effort: Effort) -> float:
    return around_asynchronously(contender.acall, effort.of(2_000, 50))


_CONTENDERS = {
    "ours": using(lambda: dynamically(echo), _trip),
    "bare": using(lambda: LoopHandOff(echo), _trip),
}
ONE_CORE = Turns(_CONTENDERS, inside=one_core)
ANY_CORE = Turns(_CONTENDERS)

ROWS = (
    Row("acall / hand-off, one core", "idle acall round trip, one core", ONE_CORE, "bare", goal=Goal(1.3)),
    Row("acall / hand-off", "idle acall round trip", ANY_CORE, "bare", goal=Goal(1.3)),
)
