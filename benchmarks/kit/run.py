"""Running benchmarks one after another, and keeping each figure as it is found."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.kit.catalogue import Benchmark
from benchmarks.kit.measure import LIMIT_S, Effort, time_limit
from benchmarks.kit.program import Program
from benchmarks.kit.results import Found
from benchmarks.kit.row import Result, Row
from benchmarks.kit.table import table
from benchmarks.kit.turns import Turns, Unavailable

__all__ = ["Session", "by_turns", "run_rows"]


@dataclass
class Session:
    """One run: where its results are kept, and whether all could be measured so far."""

    found: Found
    file: Path
    options: Namespace
    console: Console
    complete: bool = True

    def run(self, chosen: list[Benchmark]) -> bool:
        """Run the benchmarks, and print their rows; return whether all could be measured."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        # No thread that refreshes the display: it would take the interpreter from what is measured.
        with Progress(*columns, console=self.console, auto_refresh=False, transient=True) as progress:
            task = progress.add_task("")

            def describe(benchmark: str, what: str) -> None:
                progress.update(task, description=f"{benchmark}: {what}", refresh=True)

            for number, benchmark in enumerate(chosen, 1):
                announce = partial(describe, f"{number}/{len(chosen)} {benchmark}")
                self._run(benchmark, Effort(self.found.about["quick"], announce))
        self.console.print(table(self.found.all_rows().values()))
        return self.complete and not any(row.failed for row in self.found.all_rows().values())

    def _run(self, benchmark: Benchmark, effort: Effort) -> None:
        name = str(benchmark)
        try:
            module = benchmark.load()
            if benchmark.is_program:
                self._run_program(name, module, effort)
            else:
                self._run_rows(name, module, effort)
        except Exception as error:  # noqa: BLE001  the other benchmarks are worth having
            self.console.print_exception()
            self.found.rows.setdefault(name, []).append(Result(name, name, note=repr(error), failed=True))
            self.found.write(self.file)

    def _run_rows(self, name: str, module: ModuleType, effort: Effort) -> None:
        rows = self.found.rows[name] = []
        for result in run_rows(module.ROWS, effort, self.console.print_exception):
            rows.append(result)
            self.found.write(self.file)  # after every row: a run that is cut short leaves what it had

    def _run_program(self, name: str, module: ModuleType, effort: Effort) -> None:
        kind: type[Program] = module.PROGRAM
        program = kind(_filled_in(kind, self.options), effort, self.console)
        for _ in program.measure():
            self.found.rows[name], self.found.details[name] = program.results(), program.details()
            self.found.write(self.file)
        for lines in program.tables():
            self.console.print(lines)
        self.complete &= program.complete


def _filled_in(kind: type[Program], options: Namespace) -> Namespace:
    """Return the options, and the defaults of those that nothing was said about."""
    parser = ArgumentParser()
    kind.add_options(parser)
    return Namespace(**{**vars(parser.parse_args([])), **vars(options)})


def run_rows(rows: Iterable[Row], effort: Effort, report: Callable[[], Any]) -> Iterator[Result]:
    """Yield what was found for each row; a row that fails says so, and `report` is called."""
    for turns, some in by_turns(rows):
        try:
            with time_limit(LIMIT_S):
                samples = turns.samples(effort)
        except Unavailable as error:
            yield from (row.without(str(error), failed=False) for row in some)
        except Exception as error:  # noqa: BLE001  the other rows are worth having
            report()
            yield from (row.without(repr(error), failed=True) for row in some)
        else:
            yield from (row.of(samples) for row in some)


def by_turns(rows: Iterable[Row]) -> list[tuple[Turns, list[Row]]]:
    """Return the rows by their contenders, which take turns once for all of these rows."""
    found: dict[int, tuple[Turns, list[Row]]] = {}
    for row in rows:
        found.setdefault(id(row.turns), (row.turns, []))[1].append(row)
    return list(found.values())
