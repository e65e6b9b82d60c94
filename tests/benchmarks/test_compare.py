"""Two files of results side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kit.compare import lines
from benchmarks.kit.results import Found, about
from benchmarks.kit.row import SHARE, TIMES, Comparison, Goal, Result, compared


def row(name: str, ours: list[float], by: Comparison = TIMES) -> Result:
    """Return a row whose neighbour took 1 in each round."""
    return compared(name, name, {"ours": ours, "bare": [1.0] * len(ours)}, "bare", by, Goal(2.0))


def found(*rows: Result) -> Found:
    return Found(about(options="timeout_ms=0", quick=False), {"overhead sync": list(rows)})


def verdicts(old: Found, new: Found) -> dict[str, str]:
    return {name: verdict.partition("]")[2] or verdict for name, *_, verdict in lines(old, new)}


def test_a_file_has_the_machine_the_commit_and_the_date_and_is_read_back(tmp_path: Path):
    written = found(row("a", [1.0, 3.0, 2.0]), Result("b", "what b is", note="not installed"))
    written.details["http services"] = {"cells": [1]}
    written.write(tmp_path / "folder" / "results.json")
    assert Found.read(tmp_path / "folder" / "results.json") == written
    assert written.about.keys() >= {"machine", "python", "commit", "date", "packages"}
    assert written.about["machine"].keys() >= {"cpu", "cores", "os"}


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ([1.0, 1.1, 1.2, 1.3], ""),  # as before
        ([1.15, 1.2, 1.3, 1.4], ""),  # the middle halves overlap
        ([2.0, 2.1, 2.2, 2.3], "worse"),
        ([0.5, 0.6, 0.7, 0.8], "better"),
        ([2.0, 2.1], ""),  # too few rounds
    ],
)
def test_a_row_is_worse_where_middle_halves_lie_apart(now: list[float], verdict: str):
    old, new = found(row("a", [1.0, 1.1, 1.2, 1.3])), found(row("a", now))
    assert verdicts(old, new) == {"a": verdict}


def test_more_is_better_of_rates():
    old, new = found(row("a", [1.0] * 4, SHARE)), found(row("a", [2.0] * 4, SHARE))
    assert verdicts(old, new) == {"a": "better"}
    assert verdicts(new, old) == {"a": "worse"}


def test_old_and_new_are_medians_and_their_ratio_is_new_over_old():
    ((name, old, new, change, *beside, _),) = lines(
        found(row("a", [1.0, 9.0, 2.0])), found(row("a", [3.0, 3.0, 5.0]))
    )
    assert (name, old, new, change) == ("a", "2 s", "3 s", "1.5x")
    assert beside == ["2x", "3x"]


def test_rows_of_one_file_only_and_rows_without_figures_say_so():
    old = found(row("a", [1.0] * 3), row("b", [1.0] * 3))
    new = found(row("c", [1.0] * 3), Result("b", "b", note="pip cannot install it here"))
    assert verdicts(old, new) == {"a": "only in old", "b": "pip cannot install it here", "c": "only in new"}
