"""`python -m benchmarks.http`: the embedding service under load, beside other servers and two floors."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.http.environments import environment
from benchmarks.http.load import Cell, find_wrk, measure, warm_up, write_bodies
from benchmarks.http.report import (
    TITLES,
    cells_table,
    goal_rows,
    picture,
    trouble_rows,
    trouble_table,
)
from benchmarks.http.servers import SERVERS, Server, started
from benchmarks.http.trouble import Trouble, look_for
from benchmarks.kit.measure import Row
from benchmarks.kit.measure import environment as about_this_machine
from benchmarks.kit.table import table

_CONNECTIONS = (1, 8, 32, 128)
_CACHE = Path.home() / ".cache" / "batched-benchmarks" / "http"
_REAL = "minilm"
_LONGER = 1.5  # times as long for the real model, which is slow, ...
_MANY = 32  # ... and longer still, in proportion, with more connections: a cell has to last several latencies
_WARM_UP_S = 1.0
_REAL_WARM_UP_S = 4.0  # until the lengths are learned: the first batches pad 32 texts to the longest
# What `--short` leaves out decides no goal: at these models few connections show what many do.
_SHORT = {
    "4ms": ("ours", "plain", "greedy", "patient", "mosec"),
    "20ms": ("ours", "plain", "greedy", "patient", "mosec"),
    _REAL: ("ours", "plain", "pieces", "mosec", "litserve", "bentoml", "ray"),
}
_SHORT_ALONE = ("ours", "plain")  # with the real model at one connection


def main() -> int:
    """Run what the arguments ask for; return 1 if something could not be measured."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the servers stay, stopped for ever
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
    about = {**about_this_machine(), "seconds": f"{arguments.seconds:g}", "rounds": f"{arguments.rounds}"}
    console.print(", ".join(f"{name} {value}" for name, value in about.items()))
    with TemporaryDirectory(prefix="batched-http-") as temporary:
        run = _Run(arguments, console, Path(temporary))
        for _ in run.everything():
            if arguments.json is not None:  # after every cell: a run that is cut short leaves what it had
                arguments.json.write_text(
                    json.dumps({"environment": about, **run.as_dict()}, indent=2) + "\n"
                )
    for model in TITLES:
        if any(cell.model == model for cell in run.cells):
            console.print(cells_table(run.cells, model))
    if run.troubles:
        console.print(trouble_table(run.troubles))
    console.print(table(run.rows()))
    if arguments.plot is not None and run.cells:
        picture(run.cells, arguments.plot)
    return int(run.failed)


class _Run:
    """What is measured, in turns: one round after another, and in each the servers one after another."""

    def __init__(self, arguments: argparse.Namespace, console: Console, temporary: Path) -> None:
        self._arguments = arguments
        self._console = console
        self._temporary = temporary
        self.failed = False
        self.cells: list[Cell] = []
        self.troubles: list[Trouble] = []

    def rows(self) -> list[Row]:
        """Return what has a goal, as far as it was measured."""
        return [*goal_rows(self.cells), *trouble_rows(self.troubles)]

    def as_dict(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {
            "cells": [asdict(cell) for cell in self.cells],
            "trouble": [asdict(seen) for seen in self.troubles],
            "rows": [row.as_dict() for row in self.rows()],
        }

    def everything(self) -> Iterator[None]:
        """Measure; yield whenever there is something new."""
        if self._arguments.trouble != "only":
            find_wrk()
            for model in self._arguments.models:
                for cell in self._of_model(model):
                    self.cells.append(cell)
                    yield
        if self._arguments.trouble != "no":
            for seen in self._in_trouble():
                self.troubles.append(seen)
                yield

    def _of_model(self, model: str) -> Iterator[Cell]:
        arguments = self._arguments
        with ExitStack() as running:
            servers = [
                server for name in self._servers(model) if (server := self._start(name, model, running))
            ]
            for done in range(arguments.rounds):
                for connections in arguments.connections:
                    seconds = arguments.seconds
                    if model == _REAL:
                        seconds *= _LONGER * max(connections / _MANY, 1.0)
                    for server in servers[done % len(servers) :] + servers[: done % len(servers)]:
                        if self._is_wanted(model, connections, server):
                            yield self._cell(server, model, connections, seconds)

    def _servers(self, model: str) -> list[str]:
        chosen = _SHORT[model] if self._arguments.short else tuple(SERVERS)
        names = [name for name in self._arguments.only or chosen if name in SERVERS]
        return [name for name in names if name != "pieces" or model == _REAL]

    def _is_wanted(self, model: str, connections: int, server: Server) -> bool:
        if not self._arguments.short or model != _REAL:
            return True
        return server.kind.name in _SHORT_ALONE if connections == 1 else connections != 8  # noqa: PLR2004

    def _start(self, name: str, model: str, running: ExitStack) -> Server | None:
        """Start a server and stop it again until it is its turn."""
        kind = SERVERS[name]
        try:
            programs = environment(self._arguments.environments, kind.environment, self._console.print)
            server = running.enter_context(started(kind, programs, model, self._temporary))
        except Exception:  # noqa: BLE001  the other servers are worth having
            self._console.print_exception()
            self.failed = True
            return None
        server.signal(signal.SIGSTOP)
        return server

    def _cell(self, server: Server, model: str, connections: int, seconds: float) -> Cell:
        bodies = write_bodies(server.kind, self._temporary / f"{server.kind.name}.bodies")
        server.signal(signal.SIGCONT)
        warm_up(server, bodies, connections, _REAL_WARM_UP_S if model == _REAL else _WARM_UP_S)
        cell = measure(server, model, bodies, connections, seconds)
        server.signal(signal.SIGSTOP)
        self._console.print(
            f"{TITLES[model]}, {connections} connections, {server.kind.title}: {cell.rate:,.0f}/s, "
            f"p99 {cell.p99_s * 1000:,.1f} ms, {cell.errors} errors"
        )
        return cell

    def _in_trouble(self) -> Iterator[Trouble]:
        """Yield what each server does in trouble."""
        names = ["ours"] if self._arguments.short else [name for name in SERVERS if name != "pieces"]
        for name in self._arguments.only or names:
            kind = SERVERS[name]
            if kind.role in {"floor", "pieces"}:
                continue  # they promise nothing
            try:
                programs = environment(self._arguments.environments, kind.environment, self._console.print)
                yield look_for(kind, programs, self._temporary)
            except Exception:  # noqa: BLE001  as above
                self._console.print_exception()
                self.failed = True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http", description=sys.modules[__name__].__doc__
    )
    parser.add_argument(
        "--environments", type=Path, default=_CACHE, metavar="DIR",
        help=f"where each server has, or gets, its virtual environment (default {_CACHE})",
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="what decides the goals: about eleven minutes")
    parser.add_argument("--models", type=_among(TITLES), metavar="NAME[,NAME]", default=list(TITLES))
    parser.add_argument("--only", type=_among(SERVERS), metavar="NAME[,NAME]", help="only these servers")
    parser.add_argument("--connections", type=_numbers, metavar="N[,N]", default=list(_CONNECTIONS))
    parser.add_argument(
        "--seconds", type=float, default=4.0,
        help="of a cell (default 4; with the real model 6, and 24 at 128 connections)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--trouble", choices=("yes", "no", "only"), default="yes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it")
    parser.epilog = f"Servers: {', '.join(SERVERS)}. Models: {', '.join(TITLES)}."
    return parser.parse_args()


def _among(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def names(given: str) -> list[str]:
        asked = given.split(",")
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return asked

    return names


def _numbers(given: str) -> list[int]:
    return [int(number) for number in given.split(",")]


if __name__ == "__main__":
    sys.exit(main())
