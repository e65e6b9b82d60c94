"""Every row can be measured: with tiny sizes, and without what pip would have to install."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import batched
from benchmarks.kit.catalogue import CORE, catalogue
from benchmarks.kit.measure import Effort
from benchmarks.kit.own_process import Alone, in_own_process
from benchmarks.kit.rivals import LOOP_RIVALS
from benchmarks.kit.row import Row
from benchmarks.kit.run import by_turns
from benchmarks.kit.turns import Contender, Measure, Samples, Turns, Unavailable, interleave
from benchmarks.overhead.options import CALL_OPTIONS, EVERY_OPTION, STAGES
from tests.kit.effort import few
from tests.kit.optional import HAS_TORCH

QUICK = Effort(quick=True)
BENCHMARKS = [one for one in catalogue() if one.folder in {*CORE, "simulated"}]
MODULES = {str(one): one.load() for one in BENCHMARKS}
ROWS = {name: module.ROWS for name, module in MODULES.items() if hasattr(module, "ROWS")}
MANY = 8


def shortened(turns: list[tuple[Turns, list[Row]]]) -> list[tuple[Turns, list[Row]]]:
    """Return one in three; of a long product of costs and loads one in four, with each cost and each load."""
    return few(turns, 4 if len(turns) > MANY else 3)


TURNS = [
    pytest.param(turns, rows, id=f"{name}, {rows[0].name}")
    for name, all_rows in ROWS.items()
    for turns, rows in shortened(by_turns(all_rows))
]


def here(name: str, contender: Contender) -> Contender | None:
    """Return the contender, without a process of its own; None for another library."""
    if not isinstance(contender, Alone):
        return None if name.startswith(LOOP_RIVALS) else contender

    @contextmanager
    def in_this_process(effort: Effort) -> Iterator[Measure]:
        yield lambda: contender.function(*contender.given(effort))

    # The function of a rival is that of ours, where another version of the package is found.
    return None if contender.rival else in_this_process


@pytest.mark.parametrize(("turns", "rows"), TURNS)
def test_each_contender_can_be_measured_and_each_row_has_its_samples(turns: Turns, rows: list[Row]) -> None:
    measured = {name: here(name, contender) for name, contender in turns.contenders.items()}
    samples: Samples = {}
    with turns.inside():
        for name, contender in measured.items():
            if contender is not None:
                try:
                    with contender(QUICK) as measure:
                        samples |= interleave(QUICK, 1, {name: measure})
                except Unavailable as lacking:
                    if HAS_TORCH:
                        raise
                    pytest.skip(str(lacking))
    if None in measured.values():
        assert all(row.ours in samples for row in rows)
        return
    if turns.derive is not None:
        samples |= turns.derive(samples)
    for row in rows:
        result = row.of(samples)
        assert result.ours is not None
        assert len(result.figures) == 1


def test_names_of_rows_are_their_own() -> None:
    names = [row.name for rows in ROWS.values() for row in rows]
    assert sorted(set(names)) == sorted(names)


def test_a_process_of_its_own_returns_the_figure_of_its_function() -> None:
    assert in_own_process(doubled, 21) == 42.0


def doubled(number: int) -> float:
    return 2.0 * number


def test_every_option_is_set_and_none_to_its_default() -> None:
    known = inspect.signature(batched.dynamically).parameters
    of_generators = {"max_pieces", "continuous", "max_joining", "max_joining_length"}
    assert set(EVERY_OPTION) | set(STAGES) == set(known) - {"func"} - of_generators
    same = [name for name, value in EVERY_OPTION.items() if value == known[name].default]
    assert not same
    assert set(CALL_OPTIONS) == set(inspect.signature(batched.BatchedFunction.options).parameters) - {"self"}
