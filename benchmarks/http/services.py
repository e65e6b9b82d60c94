"""Requests/s and latency of the embedding service over HTTP, beside no batching, floors and four servers."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from benchmarks.http.environments import environment
from benchmarks.http.load import Cell, find_wrk, measure, warm_up, write_bodies
from benchmarks.http.report import (
    TITLES,
    cells_table,
    goal_results,
    picture,
    trouble_results,
    trouble_table,
)
from benchmarks.http.servers import SERVERS, Server, started
from benchmarks.http.trouble import Trouble, look_for
from benchmarks.kit.program import Program
from benchmarks.kit.row import Result

__all__ = ["CACHE", "PROGRAM"]

_CONNECTIONS = (1, 8, 32, 128)
CACHE = Path.home() / ".cache" / "batched-benchmarks" / "http"
_REAL = "minilm"
_LONGER = 1.5  # times as long for the real model, which is slow, ...
_MANY = 32  # ... and longer still, in proportion, with more connections: a cell has to last several latencies
_WARM_UP_S = 1.0
_REAL_WARM_UP_S = 4.0
# The same of ours, until it has learned lengths: the first batches pad 32 texts to the longest.
_LEARNS_S = 16.0
_OURS = {"ours", "apart", "bare"}  # roles
# What `--short` leaves out decides no goal: at these models few connections show what many do.
_SHORT = {
    "4ms": ("ours", "plain", "greedy", "patient", "mosec"),
    "20ms": ("ours", "plain", "greedy", "patient", "mosec"),
    _REAL: ("ours", "plain", "pieces", "mosec", "litserve", "bentoml", "ray"),
}
_SHORT_ALONE = ("ours", "plain")  # with the real model at one connection
_SLEEPING = ("ours", "ours-2", "ours-3", "granian-2", "asgi", "asgi-granian", "asgi-2", "asgi-granian-2")
_PEERS = ("mosec", "litserve", "bentoml")
_IN_PROCESSES = {
    "4ms": (*_SLEEPING, *_PEERS),
    "20ms": (*_SLEEPING, *_PEERS),
    _REAL: ("ours", "ours-2", "asgi", "asgi-2", *_PEERS),
}
_IN_PROCESSES_AT = [32, 128]


class Services(Program):
    """What is measured, in turns: one round after another, and in each the servers one after another."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """Which servers, models and connections, and for how long."""
        parser.add_argument(
            "--environments", type=Path, default=CACHE, metavar="DIR",
            help=f"where each server has, or gets, its virtual environment (default {CACHE})",
        )  # fmt: skip
        parser.add_argument(
            "--short", action="store_true", help="what decides the goals: about eleven minutes"
        )
        parser.add_argument(
            "--processes", action="store_true",
            help="what a process of the model gains: in one round, some twelve minutes",
        )  # fmt: skip
        parser.add_argument("--models", type=_among(TITLES), metavar="NAME[,NAME]", default=list(TITLES))
        parser.add_argument("--only", type=_among(SERVERS), metavar="NAME[,NAME]", help="only these servers")
        parser.add_argument("--connections", type=_numbers, metavar="N[,N]")
        parser.add_argument(
            "--seconds", type=float, default=4.0,
            help="of a cell (default 4; with the real model 6, and 24 at 128 connections)",
        )  # fmt: skip
        parser.add_argument("--rounds", type=int, default=1, metavar="N")
        parser.add_argument("--trouble", choices=("yes", "no", "only"), default="yes")

    def results(self) -> list[Result]:
        """Return what has a goal, as far as it was measured."""
        return [*goal_results(self._cells), *trouble_results(self._troubles)]

    def tables(self) -> list[Table]:
        """Return what each server did with each model, and in trouble."""
        models = [model for model in TITLES if any(cell.model == model for cell in self._cells)]
        lines = [cells_table(self._cells, model) for model in models]
        return [*lines, trouble_table(self._troubles)] if self._troubles else lines

    def details(self) -> dict[str, Any]:
        """Return all cells, and what was seen in trouble."""
        return {
            "seconds": self.options.seconds,
            "rounds": self.options.rounds,
            "cells": [asdict(cell) for cell in self._cells],
            "trouble": [asdict(seen) for seen in self._troubles],
        }

    @staticmethod
    def draw(details: dict[str, Any], file: Path) -> None:
        """Draw requests a second and p99, beside those without batching, over the connections."""
        picture([Cell(**cell) for cell in details["cells"]], file)

    def measure(self) -> Iterator[None]:
        """Measure; yield whenever there is something new."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the servers stay, stopped for ever
        self._cells: list[Cell] = []
        self._troubles: list[Trouble] = []
        with TemporaryDirectory(prefix="batched-http-") as temporary:
            self._temporary = Path(temporary)
            yield from self._everything()

    def _everything(self) -> Iterator[None]:
        if self.options.trouble != "only":
            find_wrk()
            for model in self.options.models:
                for cell in self._of_model(model):
                    self._cells.append(cell)
                    yield
        if self.options.trouble != "no" and not self.options.processes:
            for seen in self._in_trouble():
                self._troubles.append(seen)
                yield

    def _of_model(self, model: str) -> Iterator[Cell]:
        options = self.options
        with ExitStack() as running:
            servers = [
                server for name in self._servers(model) if (server := self._start(name, model, running))
            ]
            for done in range(options.rounds if servers else 0):
                for connections in self._connections():
                    seconds = options.seconds
                    if model == _REAL:
                        seconds *= _LONGER * max(connections / _MANY, 1.0)
                    for server in servers[done % len(servers) :] + servers[: done % len(servers)]:
                        if self._is_wanted(model, connections, server):
                            yield self._cell(server, model, connections, seconds)

    def _connections(self) -> list[int]:
        usual = _IN_PROCESSES_AT if self.options.processes else list(_CONNECTIONS)
        return self.options.connections or usual

    def _servers(self, model: str) -> list[str]:
        chosen = _SHORT[model] if self.options.short else tuple(SERVERS)
        if self.options.processes:
            chosen = _IN_PROCESSES[model]
        names = [name for name in self.options.only or chosen if name in SERVERS]
        return [name for name in names if name != "pieces" or model == _REAL]

    def _is_wanted(self, model: str, connections: int, server: Server) -> bool:
        if not self.options.short or model != _REAL:
            return True
        return server.kind.name in _SHORT_ALONE if connections == 1 else connections != 8  # noqa: PLR2004

    def _start(self, name: str, model: str, running: ExitStack) -> Server | None:
        """Start a server and stop it again until it is its turn."""
        kind = SERVERS[name]
        try:
            programs = environment(self.options.environments, kind.environment, self.console.print)
            server = running.enter_context(started(kind, programs, model, self._temporary))
        except Exception:  # noqa: BLE001  the other servers are worth having
            self.console.print_exception()
            self.complete = False
            return None
        server.signal(signal.SIGSTOP)
        return server

    def _cell(self, server: Server, model: str, connections: int, seconds: float) -> Cell:
        bodies = write_bodies(server.kind, self._temporary / f"{server.kind.name}.bodies")
        server.signal(signal.SIGCONT)
        learns = _LEARNS_S if server.kind.role in _OURS else _REAL_WARM_UP_S
        warm_up(server, bodies, connections, learns if model == _REAL else _WARM_UP_S)
        cell = measure(server, model, bodies, connections, seconds)
        server.signal(signal.SIGSTOP)
        self.console.print(
            f"{TITLES[model]}, {connections} connections, {server.kind.title}: {cell.rate:,.0f}/s, "
            f"p99 {cell.p99_s * 1000:,.1f} ms, {cell.errors} errors"
        )
        return cell

    def _in_trouble(self) -> Iterator[Trouble]:
        """Yield what each server does in trouble."""
        names = ["ours"] if self.options.short else [name for name in SERVERS if name != "pieces"]
        for name in self.options.only or names:
            kind = SERVERS[name]
            if kind.role in {"floor", "pieces", "bare"}:
                continue  # they promise nothing
            try:
                programs = environment(self.options.environments, kind.environment, self.console.print)
                yield look_for(kind, programs, self._temporary)
            except Exception:  # noqa: BLE001  the other servers are worth having
                self.console.print_exception()
                self.complete = False


def _among(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def names(given: str) -> list[str]:
        asked = given.split(",")
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return asked

    return names


def _numbers(given: str) -> list[int]:
    return [int(number) for number in given.split(",")]


PROGRAM = Services
