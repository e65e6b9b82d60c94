"""Two commits, measured in turns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.kit.commits import HERE, Turn, checked_out, in_turns
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours_alone import measured
from benchmarks.kit.row import Row
from benchmarks.kit.turns import Contender, Turns, using


class Runner:
    """Stands in for the processes: each turn of a commit has the next of its figures."""

    def __init__(self, **figures: list[tuple[float, ...]]) -> None:
        self.turns: list[str] = []
        self._figures = {commit: iter(each) for commit, each in figures.items()}

    def __call__(self, commit: str) -> dict[str, Turn]:
        self.turns.append(commit)
        return {"a": Turn("s", next(self._figures[commit]))}


def test_commits_take_turns_and_each_is_first_as_often():
    run = Runner(old=[(1.0,)] * 4, new=[(1.0,)] * 4)
    in_turns(run, rounds=4)
    assert run.turns == ["old", "new", "new", "old", "old", "new", "new", "old"]


def test_ratios_are_of_the_medians_of_each_round_and_the_best_of_all_samples():
    run = Runner(old=[(1.0, 2.0, 9.0), (4.0, 4.0, 3.0)], new=[(4.0, 1.5, 5.0), (4.0, 2.0, 1.0)])
    change = in_turns(run, rounds=2)["a"]
    assert (change.medians(change.old), change.medians(change.new)) == ([2.0, 4.0], [4.0, 2.0])
    assert change.ratios == (0.5, 2.0)
    assert (change.best(change.old), change.best(change.new)) == (1.0, 1.0)


def test_the_best_of_rates_is_the_most():
    change = in_turns(lambda _: {"a": Turn("/s", (1.0, 3.0, 2.0))}, rounds=1)["a"]
    assert change.best(change.new) == 3.0


def test_a_row_that_one_commit_cannot_run_says_why():
    def run(commit: str) -> dict[str, Turn]:
        return {"a": Turn(failed="no such option") if commit == "old" else Turn("s", (1.0,))}

    assert in_turns(run, rounds=2)["a"].failed == "no such option"


def test_nothing_has_no_ratio():
    run = Runner(old=[(0.0,)], new=[(1.0,)])
    assert in_turns(run, rounds=1)["a"].ratios == ()


def contender(figure: float, opened: list[float]) -> Contender:
    def measure(_: object, __: Effort) -> float:
        opened.append(figure)
        return figure

    return using(lambda: pytest.MonkeyPatch.context(), measure)


def test_one_turn_measures_ours_only_and_once_for_rows_of_the_same():
    measured_: list[float] = []
    turns = Turns({"ours": contender(1.0, measured_), "bare": contender(2.0, measured_)})
    rows = tuple(Row(f"row {what}", what, turns, "bare") for what in ("a", "a", "seen"))
    assert measured(rows, {"seen"}, Effort()) == {"a": {"unit": "s", "samples": [1.0] * 3, "failed": ""}}
    assert set(measured_) == {1.0}


def test_one_turn_goes_on_where_a_row_fails():
    def fail(_: object, __: Effort) -> float:
        raise AttributeError("no such thing")

    broken = Turns({"ours": using(pytest.MonkeyPatch.context, fail)})
    sound = Turns({"ours": contender(1.0, [])})
    found = measured((Row("a", "a", broken, ""), Row("b", "b", sound, "")), set(), Effort())
    assert found["a"]["failed"] == "AttributeError: no such thing"
    assert found["b"]["samples"] == [1.0] * 3


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits of a package `batched`."""
    place = tmp_path / "repository"
    (place / "batched").mkdir(parents=True)

    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(place), *author, *words], check=True, capture_output=True)

    git("init", "-q")
    for version in ("1", "2"):
        (place / "batched" / "__init__.py").write_text(version)
        git("add", ".")
        git("commit", "-q", "-m", version)
        git("tag", f"v{version}")
    return place


def worktrees(repository: Path) -> int:
    told = subprocess.run(
        ["git", "-C", str(repository), "worktree", "list"], check=True, capture_output=True, text=True
    )
    return len(told.stdout.splitlines())


def test_a_commit_is_checked_out_beside_and_gone_afterwards(repository: Path):
    (repository / "batched" / "__init__.py").write_text("3")
    with checked_out("v1", repository) as old, checked_out(HERE, repository) as here:
        # No benchmarks: those of this checkout are run.
        assert [file.name for file in old.iterdir()] == ["batched"]
        assert (old / "batched" / "__init__.py").read_text() == "1"
        assert (here / "batched" / "__init__.py").read_text() == "3"
        assert worktrees(repository) == 2
    assert not old.exists()
    assert worktrees(repository) == 1


def test_what_git_does_not_know_is_refused(repository: Path):
    with pytest.raises(ValueError, match="no commit 'v3'"), checked_out("v3", repository):
        pass
