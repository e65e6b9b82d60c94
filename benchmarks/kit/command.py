"""The command line: `python -m benchmarks`, and with it `compare` and `picture`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from rich.console import Console

from benchmarks.kit.catalogue import Benchmark, catalogue, choose
from benchmarks.kit.commits import HERE, compare_commits
from benchmarks.kit.compare import compare_files
from benchmarks.kit.ours import use_defaults
from benchmarks.kit.picture import draw
from benchmarks.kit.results import FOLDER, Found, about, shown
from benchmarks.kit.run import Session
from benchmarks.kit.table import table_of

__all__ = ["main"]

_USES = """\
python -m benchmarks                          overhead and load: what needs no model, server or cluster
python -m benchmarks --list                   all benchmarks, and what each measures
python -m benchmarks overhead                 those of one folder
python -m benchmarks sync tasks               those with these names
python -m benchmarks http --short             one with options of its own; --help after its name shows them
python -m benchmarks compare OLD.json NEW.json
python -m benchmarks compare OLD NEW [NAMES]  two commits, in turns; "." is this checkout as it is
python -m benchmarks picture FILE.json FILE.png
"""
_PLENTY = 240  # columns, where the output is no terminal: no table is broken


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for; return the exit status."""
    console = Console(width=None if sys.stdout.isatty() else _PLENTY)
    if arguments[:1] == ["compare"]:
        return _compare(arguments[1:], console)
    if arguments[:1] == ["picture"]:
        return _picture(arguments[1:])
    return _run(arguments, console)


def _run(arguments: list[str], console: Console) -> int:
    first_option = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words, rest = arguments[:first_option], arguments[first_option:]
    parser = ArgumentParser(prog="python -m benchmarks [NAMES]", description=_USES, formatter_class=_Raw)
    parser.add_argument("--list", action="store_true", help="show all benchmarks, and run none")
    parser.add_argument("--defaults", action="store_true", help="with all default options, not timeout_ms=0")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"where results are kept (in {FOLDER})")
    try:
        chosen = choose(words)
    except ValueError as error:
        parser.error(str(error))
    if len(chosen) == 1 and words:  # else options could mean one or the other
        _add_options(chosen[0], parser)
    options = parser.parse_args(rest)
    if options.list:
        _list(console)
        return 0
    if options.defaults:
        use_defaults()
    found = Found(about(options="all defaults" if options.defaults else "timeout_ms=0", quick=options.quick))
    file = options.json or _file(found)
    console.print(shown(found.about), highlight=False)
    complete = Session(found, file, options, console).run(chosen)
    console.print(f"{file}", highlight=False)
    return 0 if complete else 1


class _Raw(RawDescriptionHelpFormatter):
    """Help whose lines stay as they are."""


def _add_options(benchmark: Benchmark, parser: ArgumentParser) -> None:
    if benchmark.is_program:
        benchmark.load().PROGRAM.add_options(parser.add_argument_group(f"options of {benchmark}"))


def _file(found: Found) -> Path:
    """Return a file of the day, the time and the commit."""
    date = found.about["date"].partition("+")[0].replace(":", "")
    return FOLDER / f"{date}-{found.about['commit']}.json"


def _list(console: Console) -> None:
    lines = table_of(("folder", "name", "what it measures, and beside what"))
    for column in lines.columns:
        column.justify = "left"
    folder = ""
    for benchmark in catalogue():
        lines.add_row("" if benchmark.folder == folder else benchmark.folder, benchmark.name, benchmark.about)
        folder = benchmark.folder
    console.print(lines)


def _compare(arguments: list[str], console: Console) -> int:
    parser = ArgumentParser(prog="python -m benchmarks compare", description=_USES, formatter_class=_Raw)
    parser.add_argument("old", help="a file of results, or a commit")
    parser.add_argument("new", help=f"the same; {HERE!r} is this checkout as it is")
    parser.add_argument("names", nargs="*", help="of benchmarks to compare commits by (overhead)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each commit (5)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    options = parser.parse_args(arguments)
    if Path(options.old).is_file() and Path(options.new).is_file():
        return compare_files(Path(options.old), Path(options.new), console)
    try:
        chosen = choose(options.names or ["overhead"])
        if programs := [one for one in chosen if one.is_program]:
            parser.error(f"{programs[0]} has more than rows: only rows are compared of commits")
        return compare_commits(
            options.old, options.new, chosen, console, rounds=options.rounds, quick=options.quick
        )
    except ValueError as error:
        parser.error(str(error))


def _picture(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m benchmarks picture", description=_USES, formatter_class=_Raw)
    parser.add_argument("source", type=Path, metavar="FILE.json", help="a file of results")
    parser.add_argument("file", type=Path, metavar="FILE.png")
    parser.add_argument("benchmark", nargs="?", help="which one's details, if several have some")
    options = parser.parse_args(arguments)
    return draw(options.source, options.file, options.benchmark)
