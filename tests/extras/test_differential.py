"""The decorated function beside plain evaluation, in random runs: `python -m tests.differential --help`."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from tests.differential import work
from tests.differential.plan import draw
from tests.differential.run import BUSY_S, Failure, run
from tests.kit.effort import is_thorough

SEEDS = (1, 3, 4, 6, 10, 11, 12)
"""So few as have each driver and each kind of items among them; the soak has all from 1 to 12."""
A_WHILE_S = 0.5
"""For how long callers make further calls by default."""


def test_each_driver_and_each_kind_of_items_is_in_one_of_the_runs() -> None:
    """Of those that many seeds draw."""
    few, many = ([draw(seed) for seed in seeds] for seeds in (SEEDS, range(200)))
    assert {plan.drive for plan in few} == {plan.drive for plan in many}
    assert {plan.shape for plan in few} == {plan.shape for plan in many}
    assert {plan.is_remote for plan in few} == {False, True}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in SEEDS else pytest.mark.soak) for seed in range(1, 13)]
)
def test_a_run_finds_nothing(seed: int) -> None:
    """Whatever the options, the callers and the faults that the seed draws."""
    run(seed, busy_s=BUSY_S if is_thorough() else A_WHILE_S)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_minute_of_runs_finds_nothing() -> None:
    """Of seeds that are others each time; the one that fails is in the message."""
    end = time.monotonic() + 60
    for seed in count(time.time_ns() % 10**9):
        run(seed)
        if time.monotonic() > end:
            return


def test_a_run_follows_from_its_seed() -> None:
    """So that one that has failed can be run again."""
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function returns is compared with what it should."""

    def wrong(plan: Any, salt: int, number: int, second: int | None) -> Any:
        return salt + 1, number, second

    monkeypatch.setattr(work, "answer", wrong)
    plans = ((seed, draw(seed)) for seed in count())
    wanted = ("list", "tuple", 0, 1e-4)  # a few calls are enough: threads change seldom
    seeds = (
        seed
        for seed, plan in plans
        if (plan.shape, plan.outputs, plan.fault_rate, plan.switch_s) == wanted and plan.asks < 10
    )
    with pytest.raises(Failure, match="--seed"):
        run(next(seeds))
