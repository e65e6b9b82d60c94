"""Contenders with a process of their own: where memory, idling or another version of `batched` is measured.

Run as a module, this file is what such a process does: it calls one function, and prints what it returns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.kit.measure import LIMIT_S, Effort, time_limit
from benchmarks.kit.rivals import RIVAL, home
from benchmarks.kit.turns import Measure, Turns

__all__ = ["CHECKOUT", "Alone", "beside_rival", "in_own_process", "surroundings"]

CHECKOUT = Path(__file__).parents[2]

Argument = str | int | float | tuple[int, int] | tuple[float, float]


@dataclass(frozen=True)
class Alone:
    """A contender: in each turn a new process calls `function`.

    A pair among the arguments is a number and the quick one. With `rival` the process finds the packages of
    that rival first: of `batched`, its own version.
    """

    function: Callable[..., float]
    arguments: tuple[Argument, ...] = ()
    rival: str | None = None

    @contextmanager
    def __call__(self, effort: Effort) -> Iterator[Measure]:
        """Provide the measuring."""
        path = None if self.rival is None else home(effort, self.rival)
        yield partial(in_own_process, self.function, *self.given(effort), path=path)

    def given(self, effort: Effort) -> list[object]:
        """Return the arguments: of each pair, the number that fits."""
        return [
            effort.of(*argument) if isinstance(argument, tuple) else argument for argument in self.arguments
        ]


def beside_rival(function: Callable[..., float], size: Argument, rounds: int) -> Turns:
    """Return the turns of ours and of 0.1.5: `function` measures the `batched` that is found first."""
    contenders = {"ours": Alone(function, (size,)), RIVAL: Alone(function, (size,), rival=RIVAL)}
    return Turns(contenders, rounds)


def in_own_process(function: Callable[..., float], *arguments: object, path: Path | None = None) -> float:
    """Call `function` in a new process that looks for packages in `path` first; return what it returns."""
    done = subprocess.run(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", __name__, function.__module__, function.__name__, json.dumps(arguments)],
        env=surroundings(path),
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(done.stdout)


def surroundings(path: Path | None = None) -> dict[str, str]:
    """Return the environment of a process that finds the benchmarks, and packages in `path` first of all."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*([] if path is None else [str(path)]), *filter(None, inherited), str(CHECKOUT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def main() -> None:
    """Print the figure that the arguments ask for."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # 0.1.5 would import it, for seconds, unasked
    module, function, arguments = sys.argv[1:]
    with time_limit(LIMIT_S):
        print(float(getattr(import_module(module), function)(*json.loads(arguments))), flush=True)
    os._exit(0)  # a worker of 0.1.5 never ends


if __name__ == "__main__":
    main()
