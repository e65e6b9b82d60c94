"""Functions that get more calls than they can answer, each with a deadline: drawn at random, and judged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from random import Random

from batched._core.options import Options
from benchmarks.simulated.deadlines import End, Fate, Server
from benchmarks.simulated.hindsight import most_on_time
from benchmarks.simulated.processes import Stream, Traffic, poisson_times
from benchmarks.simulated.simulation import Service

__all__ = ["DEADLINES", "LOADS", "MIXED", "Judged", "Scenario", "draw", "judge"]

LOADS = (0.9, 1.2, 1.5, 2.0, 3.0)  # of the capacity of full batches
MIXED = "mixed"
DEADLINES: dict[str, tuple[float, ...]] = {  # in times of a full batch
    "1.5": (1.5,),
    "2": (2.0,),
    "4": (4.0,),
    "10": (10.0,),
    MIXED: (1.5, 2.0, 4.0, 10.0),
}
_EXACT_COSTS, _EVERY = 5, 8  # of so many scenarios, so many have costs without noise
_LEARN = 40  # batches before it counts
_STEPS = 100  # of a full batch, at least, in which the bound is computed


@dataclass(frozen=True)
class Scenario:
    """A function, its calls and their deadlines: the same ones at each `traffic()`."""

    seed: int
    service: Service
    batch_size: int
    deadlines: str
    load: float

    @property
    def full_s(self) -> float:
        """What a full batch takes."""
        return self.service.seconds(self.batch_size)

    @property
    def longest_s(self) -> float:
        """The longest deadline."""
        return max(DEADLINES[self.deadlines]) * self.full_s

    def __str__(self) -> str:
        service = self.service
        return (
            f"{self.seed}: {service.fixed_s * 1000:.3g} ms + {service.each_s * 1000:.2g} ms an item, "
            f"noise {service.noise:.0%}, batches of {self.batch_size}, deadline {self.deadlines}, "
            f"load {self.load:g}"
        )

    def arrivals(self, name: str, batches: int) -> list[float]:
        """Return when calls come in the time of so many full batches."""
        rate = self.load * self.service.capacity(self.batch_size)
        end = batches * self.full_s
        return [*takewhile(lambda at: at < end, poisson_times(rate, f"{self.seed} {name}"))]

    def durations(self) -> Callable[[int, float], float]:
        """Return what batches take, the same factors of noise in each run: log-normal, 1 on average."""
        random = Random(f"{self.seed} noise")  # noqa: S311  no secret
        sigma, seconds = self.service.noise, self.service.seconds
        return lambda size, _: seconds(size) * math.exp(sigma * random.gauss(0, 1) - sigma**2 / 2)

    def deadline(self) -> Callable[[float], float]:
        """Return what draws the deadlines of calls."""
        random = Random(f"{self.seed} deadlines")  # noqa: S311  no secret
        choices = [times * self.full_s for times in DEADLINES[self.deadlines]]
        return lambda _: random.choice(choices)


@dataclass(frozen=True)
class Judged:
    """What one scenario gave, in calls."""

    name: str
    deadlines: str
    load: float
    is_exact: bool  # the costs have no noise, so that the bound is one
    offered: int
    bound: int
    on_time: int
    late: int
    dropped: int
    refused: int
    needless: int
    """Of those dropped and refused, how many are on time where nothing is dropped."""
    on_time_without: int
    """How many are on time there."""


def draw(seed: int, deadlines: str, load: float) -> Scenario:
    """Draw a function. Its fixed cost is that of a whole number of items, as suits the grid of the bound."""
    random = Random(f"{seed} {deadlines} {load}")  # noqa: S311  no secret
    fixed_s = math.exp(random.uniform(math.log(1e-3), math.log(50e-3)))
    ratio = round(math.exp(random.uniform(math.log(1), math.log(256))))
    noise = 0.0 if seed % _EVERY < _EXACT_COSTS else random.uniform(0.1, 0.2)
    service = Service(fixed_s, fixed_s / ratio, noise)
    return Scenario(seed, service, random.choice((8, 16, 32, 64)), deadlines, load)


def judge(scenario: Scenario, batches: int) -> Judged:
    """Serve arrivals for the time of so many full batches, once the function is known and no call waits.

    Where calls differ in their deadline, the bound is that of calls which all have the longest. Where
    durations have noise it is that of the mean duration, which is no bound but a yardstick: no rule knows
    beforehand which batch will be fast, but a rule may be lucky.
    """
    learn = scenario.arrivals("learn", _LEARN)
    begin = (_LEARN + 2) * scenario.full_s + scenario.longest_s
    counted = [begin + at for at in scenario.arrivals("counted", batches)]
    ours = _fates(scenario, learn, counted, tells=True)
    without = _fates(scenario, learn, counted, tells=False)
    ends = Counter(fate.end for fate in ours.values())
    in_time = {at for at, fate in without.items() if fate.end is End.ON_TIME}
    given_up = {at for at, fate in ours.items() if fate.end in {End.DROPPED, End.REFUSED}}
    return Judged(
        name=str(scenario),
        deadlines=scenario.deadlines,
        load=scenario.load,
        is_exact=not scenario.service.noise,
        offered=len(counted),
        bound=_bound(scenario, counted),
        on_time=ends[End.ON_TIME],
        late=ends[End.LATE],
        dropped=ends[End.DROPPED],
        refused=ends[End.REFUSED],
        needless=len(given_up & in_time),
        on_time_without=len(in_time),
    )


def _fates(scenario: Scenario, learn: list[float], counted: list[float], *, tells: bool) -> dict[float, Fate]:
    """Return what became of the calls that count, by when they came."""

    def times() -> Iterator[float]:
        yield from learn
        yield from counted
        yield math.inf

    options = Options(batch_size=scenario.batch_size)
    server = Server(options, Traffic(Stream(times())), scenario.durations(), scenario.deadline(), tells=tells)
    server.run()
    return {fate.arrived: fate for fate in server.fates if fate.arrived >= counted[0]}


def _bound(scenario: Scenario, counted: list[float]) -> int:
    size = scenario.batch_size
    # Where an item is a whole number of steps, all durations are; else rounding down is a hundredth at most.
    items = round(scenario.full_s / scenario.service.each_s)
    steps = items * math.ceil(_STEPS / items) if items <= 2 * _STEPS else _STEPS
    return most_on_time(counted, scenario.longest_s, scenario.service.seconds, size, steps)
