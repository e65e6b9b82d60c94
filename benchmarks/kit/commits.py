"""What a change costs: two commits, measured in turns by the benchmarks of this checkout.

Each turn is a process of its own, which finds the `batched` of one commit before any other. Only contenders
of ours are measured: each commit is beside the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks.kit.catalogue import Benchmark
from benchmarks.kit.compare import FEW, verdict
from benchmarks.kit.measure import LIMIT_S
from benchmarks.kit.own_process import CHECKOUT, surroundings
from benchmarks.kit.results import git
from benchmarks.kit.row import middle_half
from benchmarks.kit.table import shown, table_of

__all__ = ["HERE", "Change", "Turn", "checked_out", "compare_commits", "in_turns"]

HERE = "."  # this checkout as it is, with what is not committed


@dataclass(frozen=True)
class Turn:
    """What one process found of one row: the samples of ours, or why there are none."""

    unit: str = "s"
    samples: tuple[float, ...] = ()
    failed: str = ""


@dataclass
class Change:
    """One row of both commits, round by round."""

    unit: str = "s"
    old: list[Turn] = field(default_factory=list)
    new: list[Turn] = field(default_factory=list)

    @property
    def failed(self) -> str:
        """Why there is nothing to compare, if there is not."""
        return next((turn.failed for turn in (*self.old, *self.new) if turn.failed), "")

    def medians(self, turns: list[Turn]) -> list[float]:
        """Return the median of each round."""
        return [median(turn.samples) for turn in turns]

    def best(self, turns: list[Turn]) -> float:
        """Return the best of all samples: the least, or of rates the most."""
        samples = [sample for turn in turns for sample in turn.samples]
        return max(samples) if self.unit == "/s" else min(samples)

    @property
    def ratios(self) -> tuple[float, ...]:
        """New over old in each round, sorted; nothing where old is nothing."""
        old, new = self.medians(self.old), self.medians(self.new)
        return tuple(sorted(map(truediv, new, old))) if all(old) else ()


Run = Callable[[str], Mapping[str, Turn]]
"""Measures the rows of a benchmark with "old" or "new", in a process of its own."""


def in_turns(run: Run, rounds: int) -> dict[str, Change]:
    """Have both commits measured in each round, the other one first each time; return the rows by name."""
    found: dict[str, Change] = {}
    order = ["old", "new"]
    for _ in range(rounds):
        for commit in order:
            for name, turn in run(commit).items():
                change = found.setdefault(name, Change(turn.unit))
                (change.old if commit == "old" else change.new).append(turn)
        order.reverse()
    return found


def compare_commits(  # noqa: PLR0913  what a comparison depends on
    old: str, new: str, chosen: list[Benchmark], console: Console, *, rounds: int, quick: bool
) -> int:
    """Measure both commits in turns, and print their rows side by side."""
    lines = table_of(("row", "old", "new", "best: old", "best: new", "new / old", "(middle half)", ""))
    with checked_out(old) as old_path, checked_out(new) as new_path:
        paths = {"old": old_path, "new": new_path}
        seen: set[str] = set()
        try:
            for benchmark in chosen:
                console.print(f"{benchmark}", style="dim", highlight=False)

                def run(commit: str, benchmark: Benchmark = benchmark) -> Mapping[str, Turn]:
                    return _measured(benchmark, paths[commit], seen, quick=quick)

                changes = in_turns(run, rounds)
                for name, change in changes.items():
                    lines.add_row(name, *_cells(change))
                seen.update(changes)
        finally:
            console.print(lines)  # also of a comparison that is cut short
    return 0


def _cells(change: Change) -> list[str]:
    if change.failed or len(change.old) != len(change.new):
        return [*[""] * 6, escape(change.failed or "not measured with both")]
    both = change.old, change.new
    figures = [
        *(shown(median(change.medians(turns)), change.unit) for turns in both),
        *(shown(change.best(turns), change.unit) for turns in both),
    ]
    middle = middle_half(change.ratios)
    if middle is None:
        return [*figures, "", "", ""]
    low, high = middle
    return [
        *figures,
        f"{median(change.ratios):.3g}x",
        f"({low:.3g}x to {high:.3g}x)",
        "" if low <= 1 <= high or len(change.old) < FEW else verdict(change.unit, grown=low > 1),
    ]


def _measured(benchmark: Benchmark, path: Path, seen: set[str], *, quick: bool) -> Mapping[str, Turn]:
    """Have a new process measure the contenders of ours, with the `batched` in `path`."""
    asked = {"folder": benchmark.folder, "name": benchmark.name, "seen": sorted(seen), "quick": quick}
    try:
        done = subprocess.run(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", "benchmarks.kit.ours_alone", json.dumps(asked)],
            env=surroundings(path),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {str(benchmark): Turn(failed=f"not done after {error.timeout:g} s")}
    if done.returncode:
        *_, why = done.stderr.strip().splitlines() or ["no word why"]
        return {str(benchmark): Turn(failed=why)}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(told["batched"]).parent.parent != path:
        raise RuntimeError(f"measured {told['batched']} instead of the one in {path}")
    return {
        name: Turn(turn["unit"], tuple(turn["samples"]), turn["failed"])
        for name, turn in told["rows"].items()
    }


@contextmanager
def checked_out(commit: str, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """Provide a folder with the `batched` of a commit, and nothing else; it is gone afterwards.

    Raises `ValueError` if git knows no such commit.
    """
    with TemporaryDirectory(prefix="batched-") as temporary:
        tree, path = Path(temporary, "tree"), Path(temporary, "path")
        path.mkdir()
        if commit == HERE:
            (path / "batched").symlink_to(checkout / "batched")
            yield path
            return
        if not (known := git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", checkout=checkout)):
            raise ValueError(f"no commit {commit!r}, and no file of that name")
        git("worktree", "add", "--detach", str(tree), known, checkout=checkout)
        try:
            if not (tree / "batched").is_dir():
                raise ValueError(f"git cannot check out {commit!r}, or there is no package in it")
            (path / "batched").symlink_to(tree / "batched")
            yield path
        finally:
            git("worktree", "remove", "--force", str(tree), checkout=checkout)
