"""Answers within 500 ms over HTTP while clients ask for twice the capacity, beside other servers.

With the slower function HTTP in Python has time left on one core: what a server loses is lost by its batches.
With the faster one, 615 items a second, twice the capacity is more requests than such a server can refuse.
"""

from __future__ import annotations

import json
import os
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from benchmarks.http.environments import environment
from benchmarks.http.load import find_wrk
from benchmarks.http.models import BATCH_SIZE
from benchmarks.http.servers import SERVERS, Server, service, started
from benchmarks.http.services import CACHE
from benchmarks.kit.program import Program
from benchmarks.kit.row import Goal, Result
from benchmarks.kit.table import table_of

__all__ = ["PROGRAM"]

_SCRIPT = Path(__file__).with_suffix(".lua")
_MODELS = {"40ms+4ms": (40, 4), "20ms+1ms": (20, 1)}  # of a batch, and of each item
_DEADLINE_MS = 500.0
_IN_TIME_MS = 1.1 * _DEADLINE_MS  # as clients see it: the way there and back included
_PAUSE_S = 1.0
_TIMES = 2.0  # the capacity: what clients ask for, where half of them are answered in half the time
_WARM_UP_S = 4.0
_DEADLINE = "deadline"
_SERVERS = {
    _DEADLINE: service(_DEADLINE, "this service, default_deadline_ms=500", "ours"),
    **SERVERS,
}
_NAMES = (_DEADLINE, "ours", "plain", "mosec", "litserve", "bentoml", "ray")
_GOALS = {_DEADLINE: Goal(0.9, at_least=True)}


@dataclass(frozen=True)
class Flooded:
    """One server, in one round; figures are a second."""

    server: str
    in_time: float
    asked: float
    refused: float
    broken: int
    p50_s: float
    p99_s: float
    batch: float  # its mean size


class Flood(Program):
    """Each server alone, one after another."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """Which servers, and for how long."""
        parser.add_argument("--environments", type=Path, default=CACHE, metavar="DIR")
        parser.add_argument("--model", choices=_MODELS, default=next(iter(_MODELS)))
        parser.add_argument("--only", type=lambda given: given.split(","), metavar="NAME[,NAME]")
        parser.add_argument("--seconds", type=float, default=10.0)
        parser.add_argument("--rounds", type=int, default=1, metavar="N")

    def measure(self) -> Iterator[None]:
        """Measure; yield after each server."""
        self._found: list[Flooded] = []
        batch_ms, item_ms = _MODELS[self.options.model]
        self._capacity = BATCH_SIZE / (batch_ms + item_ms * BATCH_SIZE) * 1000  # requests a second
        self._connections = round(_TIMES * self._capacity * (_PAUSE_S + _DEADLINE_MS / 2000))
        find_wrk()
        with TemporaryDirectory(prefix="batched-flood-") as temporary:
            for _ in range(self.options.rounds):
                for name in self.options.only or _NAMES:
                    try:
                        self._found.append(self._one(name, Path(temporary)))
                    except Exception:  # noqa: BLE001  the other servers are worth having
                        self.console.print_exception()
                        self.complete = False
                    yield

    def _one(self, name: str, temporary: Path) -> Flooded:
        kind = _SERVERS[name]
        programs = environment(self.options.environments, kind.environment, self.console.print)
        with started(kind, programs, self.options.model, temporary) as server:
            _flood(server, self._connections, _WARM_UP_S)
            before = server.counts.read()
            found = _flood(server, self._connections, self.options.seconds)
            batches, items = (now - then for now, then in zip(server.counts.read(), before, strict=True))
        seconds = found["seconds"]
        return Flooded(
            server=name,
            # Refusals are quick answers too.
            in_time=max(0.0, found["quick"] - found["refused"]) / seconds,
            asked=found["requests"] / seconds,
            refused=found["refused"] / seconds,
            broken=int(found["broken"]),
            p50_s=found["p50_s"],
            p99_s=found["p99_s"],
            batch=items / max(batches, 1),
        )

    def results(self) -> list[Result]:
        """Return each server's share of the capacity."""
        results = []
        for name in dict.fromkeys(one.server for one in self._found):
            shares = sorted(one.in_time / self._capacity for one in self._found if one.server == name)
            results.append(
                Result(
                    name=f"flood: {name}",
                    what=f"answers within {_IN_TIME_MS:.0f} ms, {_SERVERS[name].title}",
                    ours=median(shares) * self._capacity,
                    beside="capacity",
                    other=self._capacity,
                    unit="/s",
                    figure=median(shares),
                    figures=tuple(shares),
                    goal=_GOALS.get(name),
                )
            )
        return results

    def tables(self) -> list[Table]:
        """Return all that was seen."""
        titles = ("server", "in time/s", "asked/s", "refused/s", "broken", "p50 ms", "p99 ms", "batch")
        lines = table_of(
            titles,
            f"{self.options.model}: {self._connections} connections, each asks again after {_PAUSE_S:g} s",
        )
        for one in self._found:
            rates = (f"{rate:,.0f}" for rate in (one.in_time, one.asked, one.refused, one.broken))
            times = (f"{seconds * 1000:,.0f}" for seconds in (one.p50_s, one.p99_s))
            lines.add_row(_SERVERS[one.server].title, *rates, *times, f"{one.batch:.1f}")
        return [lines]

    def details(self) -> dict[str, Any]:
        """Return each server."""
        return {"flood": [asdict(one) for one in self._found]}


PROGRAM = Flood


def _flood(server: Server, connections: int, seconds: float) -> dict[str, float]:
    """Have clients ask for so long, and wait until the server has done with what they asked for."""
    done = subprocess.run(  # noqa: S603  our own words
        [
            find_wrk(),
            "--threads=1",
            f"--connections={connections}",
            f"--duration={max(round(seconds), 1)}s",
            "--timeout=60s",
            f"--script={_SCRIPT}",
            server.url,
            "--",
            server.kind.body("one text").decode(),
        ],
        env={
            **os.environ,
            "FLOOD_PAUSE_MS": str(_PAUSE_S * 1000),
            "FLOOD_IN_TIME_MS": str(_IN_TIME_MS),
        },
        stdout=subprocess.PIPE,
        check=True,
        timeout=seconds + 120,
    )
    server.settle()
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
