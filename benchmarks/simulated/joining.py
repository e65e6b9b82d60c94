"""When items join a batch that is refilled, simulated, beside the best fixed rule in hindsight.

A step takes 4 ms and 0.1 ms an item; a step at which items join takes longer, by a part of its own and one
for each of them. The fixed rules join as soon as 1, 2 ... 32 items can, or at most 1, 2 or 4 at a time. Of
those that reach 98 % of the best throughput, the one with the least time to first piece is the best in
hindsight.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from statistics import fmean

from batched._policy.joining import Joining
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import COUNT, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns

_FIXED_S, _EACH_S = 4e-3, 0.1e-3
_SCENARIOS = 100
_ITEMS = 1500
_NEAR = 0.98

Room = Callable[[int, int, int], int]
"""Says how many join: of how many are there, how many there may be, and how many wait."""


@dataclass(frozen=True)
class Scenario:
    """What a function costs, and how its callers come."""

    number: int
    places: int
    join: float
    """What it costs that items join, in full steps, ..."""
    joining: float
    """... and what each adds."""
    lengths: str
    callers: float
    """In closed loops, by the number of places; or below 1, at random, the share of the best throughput."""

    def seconds(self, items: int, joining: int) -> float:
        """Return how long a step takes."""
        full = _FIXED_S + _EACH_S * self.places
        return _FIXED_S + _EACH_S * items + (full * (self.join + self.joining * joining) if joining else 0.0)

    def draw(self) -> Iterator[int]:
        """Yield how many pieces each item has."""
        rng = Random(self.number)  # noqa: S311  no secret
        while True:
            if self.lengths == "log-normal":
                yield int(min(max(rng.lognormvariate(3.6, 0.9), 5), 300))
            elif self.lengths == "short":
                yield rng.randint(2, 12)
            else:
                yield 1 + int(rng.expovariate(1 / 60))


def scenarios(number: int) -> list[Scenario]:
    """Return so many, drawn from all combinations."""
    every = [
        *product(
            (8, 32, 64),
            (0.0, 0.5, 3.0, 10.0),
            (0.0, 0.1, 0.5),
            ("log-normal", "short", "geometric"),
            (0.5, 0.85, 1, 3),
        )
    ]
    some = Random(1).sample(every, number)  # noqa: S311  no secret
    return [Scenario(at, *each) for at, each in enumerate(some)]


class Learned:
    """The rule that ships."""

    def __init__(self) -> None:
        self.joining = Joining()

    def room(self, live: int, most: int, waiting: int) -> int:
        """Return how many join."""
        return self.joining.room(live, most, waiting)


def fixed(least: int, most_at_once: int, live: int, most: int, waiting: int) -> int:
    """Return how many join: as many as can, once these are so many; at most so many at once."""
    can = min(most - live, waiting)
    return min(can, most_at_once) if can >= min(least, most) else 0


RULES: dict[str, Room] = {
    f"from {least}": partial(fixed, least, 10**9) for least in (1, 2, 3, 4, 6, 8, 16, 32)
}
RULES |= {f"up to {most}": partial(fixed, 1, most) for most in (1, 2, 4)}


def serve(scenario: Scenario, rule: Room | None, rate: float, items: int) -> tuple[float, float]:
    """Return the items per second, and the mean time to first piece; of the rule that ships if it is None.

    Calls come at random at a `rate`; if that is 0, from callers in closed loops.
    """
    learned = Learned()
    room = learned.room if rule is None else rule
    rng, lengths = Random(scenario.number), scenario.draw()  # noqa: S311  no secret
    coming: list[float] = []
    now = 0.0
    if rate:
        for _ in range(items + 50):
            now += rng.expovariate(rate)
            coming.append(now)
    else:
        coming = [rng.random() * 0.01 for _ in range(int(scenario.places * scenario.callers))]
    heapq.heapify(coming)
    now = 0.0
    waiting: list[float] = []
    live: list[int] = []
    firsts: list[float] = []
    done, skip, began = 0, items // 5, 0.0
    while done < items:
        while coming and coming[0] <= now:
            waiting.append(heapq.heappop(coming))
        if not (live or waiting):
            now = coming[0]
            continue
        can = min(scenario.places - len(live), len(waiting))
        joining = min(can, room(len(live), scenario.places, len(waiting))) if live and can else can
        seconds = scenario.seconds(len(live) + joining, joining)
        now += seconds
        there = len(live) + joining
        firsts += [now - came for came in waiting[:joining]]
        del waiting[:joining]
        live = [left - 1 for left in [*live, *(next(lengths) for _ in range(joining))]]
        ended = sum(left <= 0 for left in live)
        live = [left for left in live if left > 0]
        learned.joining.stepped(there, joining, seconds, ended)
        if not rate:
            for _ in range(ended):
                rest = 0.0 if scenario.callers > 1 else rng.expovariate(1 / (10 * _FIXED_S))
                heapq.heappush(coming, now + rest)
        done += ended
        if not began and done >= skip:
            began, skip = now, done
            firsts.clear()
    return (done - skip) / (now - began), fmean(firsts)


def compared(scenario: Scenario, items: int) -> dict[str, float]:
    """Return the shares of the best rule in hindsight: of its throughput, and of its time to first piece."""
    rate = 0.0
    if scenario.callers < 1:
        crowd = Scenario(
            scenario.number, scenario.places, scenario.join, scenario.joining, scenario.lengths, 3
        )
        rate = scenario.callers * max(serve(crowd, rule, 0.0, items // 3)[0] for rule in RULES.values())
    found = {name: serve(scenario, rule, rate, items) for name, rule in RULES.items()}
    most = max(throughput for throughput, _ in found.values())
    best = min(first for throughput, first in found.values() if throughput >= _NEAR * most)
    ours = serve(scenario, None, rate, items)
    at_once = found["from 1"]
    return {
        "first piece": min(best / ours[1], 1.0),
        "throughput": ours[0] / most,
        "first piece at once": min(best / at_once[1], 1.0),
        "throughput at once": at_once[0] / most,
    }


def _all(effort: Effort) -> dict[str, float]:
    """Return the figures of all scenarios together."""
    some = scenarios(effort.of(_SCENARIOS, 4))
    found = [compared(each, effort.of(_ITEMS, 300)) for each in some]
    figures = {"one": 1.0}
    for name in found[0]:
        values = sorted(each[name] for each in found)
        figures |= {f"{name} mean": fmean(values), f"{name} worst": values[0]}
    return figures


@contextmanager
def _contender(effort: Effort) -> Iterator[Measure]:
    yield partial(_all, effort)


def _rows() -> Iterator[Row]:
    contender: Contender = _contender
    turns = Turns({"all": contender}, rounds=1)
    for name, words, bound in (
        (
            "first piece mean",
            "time to first piece, of the best rule in hindsight, mean of 100 scenarios",
            0.9,
        ),
        ("first piece worst", "the same, worst", None),
        ("throughput mean", "throughput, of the best rule in hindsight, mean of 100 scenarios", 0.98),
        ("throughput worst", "the same, worst", None),
        ("first piece at once mean", "time to first piece where all join at once, mean", None),
        ("throughput at once worst", "throughput where all join at once, worst", None),
    ):
        goal = None if bound is None else Goal(bound, at_least=True)
        yield Row(f"joining: {name}", words, turns, "all one", COUNT, goal, f"all {name}")


ROWS = tuple(_rows())
