"""Lengths whose cost is known, and a batcher that is told the time by hand and knows the lengths of items."""

from __future__ import annotations

from functools import partial
from typing import Any

from batched._core.call import Call
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Lengths
from tests.kit.batcher_rules import COLLATOR, echo


class Known(Lengths):
    """Lengths whose cost is known and stays as it is."""

    def ran(self, *_: Any) -> None:
        """Learn nothing."""


class KnownCost(LengthCost):
    """A cost that is known without a batch."""

    known = True
    is_told = True


def known(
    fixed: float, per_length: float, *, reorders: bool = True, padded: bool = False, kind: type[Known] = Known
) -> Known:
    """Return lengths for which a batch takes `fixed` seconds, and padding `per_length` an item and unit."""
    lengths = kind(reorders=reorders, padded=padded)
    lengths.cost = KnownCost()
    lengths.cost.fixed, lengths.cost.per_length = fixed, per_length
    return lengths


def driver_of(lengths: Lengths, batch_size: int = 8, threshold: int = 8) -> ManualDriver:
    """Return a driver that knows lengths and never waits."""
    options = Options(
        batch_size=batch_size,
        small_batch_threshold=threshold,
        timeout_ms=0,
        max_batch_length=None if lengths.budget is None else int(lengths.budget),
    )
    return ManualDriver(options, partial(LengthQueue, lengths=lengths), COLLATOR)


def call_of(lengths: list[float], *, bulk: bool | None = None) -> Call:
    """Return a call of items of these lengths, which came at time 0."""
    call = Call().begin(echo, list(lengths), len(lengths), True, 0.0, None, bulk)
    call.lengths = lengths
    return call


def batches_of(driver: ManualDriver) -> list[list[float]]:
    """Return the lengths of the batches that run now, one after another."""
    batches = []
    while driver.delay(0.0) is not None:
        batch = driver.pop(0.0)
        batches.append(COLLATOR.collate(batch))
        driver.finish(batch, 0.0, batches[-1])
    return batches


def items_of(*lengths: float) -> list[Any]:
    """Return waiting items in order of arrival."""
    return [(length, at, Call().begin(echo, None, 1, False, 0.0), 0) for at, length in enumerate(lengths)]
