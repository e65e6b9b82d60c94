"""Contenders that take turns: each is measured once in each round, so that a slow minute slows all."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.kit.measure import Effort

__all__ = ["Contender", "Measure", "Samples", "Turns", "Unavailable", "interleave", "using"]

T = TypeVar("T")
Samples = dict[str, list[float]]
Measure = Callable[[], float | Mapping[str, float]]
"""What is done in one turn. A mapping has several figures: those of "ours" are samples "ours KEY"."""
Contender = Callable[[Effort], AbstractContextManager[Measure]]
"""Opened before the first round, closed after the last."""


class Unavailable(Exception):  # noqa: N818  a fact about the machine, not an error of the code
    """What a row is beside is not installed here, and cannot be."""


@dataclass(frozen=True)
class Turns:
    """Contenders, and how many rounds they take turns. Names that begin with "ours" are of this package."""

    contenders: Mapping[str, Contender]
    rounds: int = 25
    quick_rounds: int = 1
    inside: Callable[[], AbstractContextManager[object]] = nullcontext
    derive: Callable[[Samples], Samples] | None = None  # further samples, of those that were measured

    def samples(self, effort: Effort) -> Samples:
        """Measure all of them."""
        found = self._measured(effort, self.contenders, effort.of(self.rounds, self.quick_rounds))
        return found if self.derive is None else {**found, **self.derive(found)}

    def ours(self, effort: Effort, rounds: int, enough_s: float = inf) -> Samples:
        """Measure those of this package only, in no further round once it took `enough_s`."""
        mine = {name: some for name, some in self.contenders.items() if name.startswith("ours")}
        return self._measured(effort, mine, rounds, enough_s)

    def _measured(
        self, effort: Effort, contenders: Mapping[str, Contender], rounds: int, enough_s: float = inf
    ) -> Samples:
        with self.inside(), ExitStack() as opened:
            measures = {name: opened.enter_context(some(effort)) for name, some in contenders.items()}
            return interleave(effort, rounds, measures, enough_s)


def interleave(
    effort: Effort, rounds: int, measures: Mapping[str, Measure], enough_s: float = inf
) -> Samples:
    """Measure in turn, `rounds` times, or until a round ends after `enough_s`."""
    samples: Samples = {}
    started = perf_counter()
    for done in range(rounds):
        if done and perf_counter() - started >= enough_s:
            break
        for name, measure in measures.items():
            effort.announce(f"{name}, round {done + 1} of {rounds}")
            gc.collect()  # no contender pays for another's garbage
            found = measure()
            figures = (
                {f"{name} {key}": value for key, value in found.items()}
                if isinstance(found, Mapping)
                else {name: found}
            )
            for key, value in figures.items():
                samples.setdefault(key, []).append(value)
    return samples


def using(
    opened: Callable[[], AbstractContextManager[T]],
    measure: Callable[[T, Effort], float | Mapping[str, float]],
) -> Contender:
    """Return a contender that opens something once, and measures it in each round."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Any]:
        with opened() as thing:
            yield lambda: measure(thing, effort)

    return contender
