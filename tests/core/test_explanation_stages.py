"""What `explain` says of stages."""

from __future__ import annotations

from typing import Any

import pytest

import batched
from batched._core.explanation import explain
from batched._core.options import Options
from tests.kit.figures import stats, times


def told(prepare: float, function: float, finish: float, **changes: Any) -> str:
    """Return what is said of stages that take so many seconds."""
    stages = {"prepare": times(prepare), "function": times(function), "finish": times(finish)}
    return explain(stats(stages=stages, **changes), Options(prepare=list, finish=list))


def test_it_says_what_each_stage_takes_and_which_is_the_slowest() -> None:
    said = told(0.002, 0.004, 0.001)
    assert "The stages of a batch take prepare 2 ms, function 4 ms, finish 1 ms on average" in said
    assert "as fast as function allows" in said
    assert "waits for" not in said


@pytest.mark.parametrize(("stage", "seconds"), [("prepare", (4, 2, 1)), ("finish", (1, 2, 4))])
def test_it_says_what_the_function_waits_for(stage: str, seconds: tuple[int, int, int]) -> None:
    assert f"The function waits for {stage}: a faster one" in told(*seconds)


def test_it_says_where_nothing_is_gained() -> None:
    assert "overlapping saves next to nothing" in told(0.001, 0.1, 0.001)


def test_of_a_function_without_stages_and_of_few_batches_nothing_is_said() -> None:
    assert "stages" not in explain(stats(), Options())
    assert "stages of a batch" not in told(1, 2, 3, total_batches=5)


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        ((0.001, 0.002, 0.001), "A worker is in the function for 50% of that: another worker"),
        ((0.001, 0.1, 0.001), None),
    ],
)
def test_with_workers_it_says_that_stages_follow_each_other_in_the_worker(
    seconds: tuple[float, float, float], advice: str | None
) -> None:
    """Not that they overlap; and what the rest of the time of a worker is good for, where that is much."""
    stages = dict(zip(("prepare", "function", "finish"), map(times, seconds), strict=True))
    said = explain(stats(stages=stages), Options(prepare=list, finish=list, workers=batched.Workers(2)))
    assert "one after the other in the worker that has it" in said
    assert "follow each other as fast as" not in said
    assert ("another worker on the same device" in said) == (advice is not None)
    assert advice is None or advice in said
