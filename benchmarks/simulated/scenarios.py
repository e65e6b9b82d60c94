"""What is simulated: two grids whose optimum is known, and scenarios drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from random import Random

from benchmarks.simulated.processes import (
    Caller,
    Stream,
    Traffic,
    always,
    burst_times,
    closed,
    exponential,
    log_normal,
    on_off_times,
    periodic_times,
    poisson_times,
)
from benchmarks.simulated.simulation import Service

__all__ = ["Scenario", "closed_loops", "poisson", "random_scenario", "spread"]

FIXED_S = 0.005


@dataclass(frozen=True)
class Scenario:
    """A function, and those that call it: the same ones at every `traffic()`."""

    name: str
    service: Service
    batch_size: int
    traffic: Callable[[], Traffic]
    rate: float = 0.0  # of independent arrivals
    callers: int = 0  # of a closed loop
    think_s: float = 0.0


def poisson(ratio: float, batch_size: int, load: float) -> Scenario:
    """Independent arrivals, at `load` of the capacity; a batch costs `ratio` times what an item does."""
    service = Service(FIXED_S, FIXED_S / ratio)
    rate = load * service.capacity(batch_size)
    name = f"a/b {ratio:g}, batches of {batch_size}, load {load:g}"
    return Scenario(name, service, batch_size, lambda: Traffic(Stream(poisson_times(rate, name))), rate=rate)


def closed_loops(ratio: float, batch_size: int, callers: int, think: float) -> Scenario:
    """Callers that come back after an exponential time, on average `think` of a batch's fixed cost."""
    service = Service(FIXED_S, FIXED_S / ratio)
    think_s = think * FIXED_S
    name = f"a/b {ratio:g}, batches of {batch_size}, {callers} callers, back after {think:g} a"
    return Scenario(
        name,
        service,
        batch_size,
        lambda: Traffic(*closed(callers, exponential(think_s), name)),
        callers=callers,
        think_s=think_s,
    )


def spread(fixed_ms: float, ratio: float, callers: int, longest_ms: float) -> Scenario:
    """Callers that come back evenly spread from 1 ms on; batches of 32 at most."""
    service = Service(fixed_ms / 1000, fixed_ms / 1000 / ratio)
    least_s, most_s = 0.001, longest_ms / 1000
    name = f"{fixed_ms:g} ms, a/b {ratio:g}, {callers} callers, back after 1 to {longest_ms:g} ms"
    return Scenario(
        name,
        service,
        32,
        lambda: Traffic(*closed(callers, lambda random: random.uniform(least_s, most_s), name)),
        callers=callers,
        think_s=(least_s + most_s) / 2,
    )


def random_scenario(seed: int, workers: int = 1) -> Scenario:
    """Draw a function and its callers: of any speed, alone or many, open or closed, in bursts, with lists.

    There is as much for each of the `workers` to do as for one.
    """
    random = Random(seed)  # noqa: S311  no secret

    def between(low: float, high: float) -> float:
        return math.exp(random.uniform(math.log(low), math.log(high)))

    fixed_s, ratio = between(0.2e-3, 50e-3), between(1, 256)
    batch_size = random.choice((4, 8, 16, 32, 64))
    service = Service(fixed_s, fixed_s / ratio, random.choice((0.0, 0.05, 0.2)))
    load = random.uniform(0.05, 0.95)
    kind = random.choice(("closed loops", random.choice(tuple(_OPEN))))
    traffic, words = _OPEN.get(kind, partial(_closed, workers))(
        random, between, service, batch_size, load * workers, str(seed)
    )
    name = (
        f"{seed}: {kind} ({words}), {fixed_s * 1000:.2g} ms + {fixed_s / ratio * 1000:.2g} ms an item, "
        f"batches of {batch_size}"
    )
    return Scenario(name, service, batch_size, traffic)


Between = Callable[[float, float], float]
Drawn = tuple[Callable[[], Traffic], str]


def _closed(  # noqa: PLR0913, PLR0917  as all of them
    workers: int, random: Random, between: Between, service: Service, batch_size: int, load: float, seed: str
) -> Drawn:
    del load
    callers = workers * max(1, round(between(1, 3 * batch_size)))
    think_s = service.fixed_s * between(0.01, 4)
    words = f"{callers} callers, back after {think_s * 1000:.2g} ms"
    kind = random.choice(("exponential", "log-normal", "one by one", "half of them slowly", "with lists"))
    if kind == "one by one":
        gap_s = between(10e-6, 50e-6)
        return (
            lambda: Traffic(
                *(Caller(always(20e-6 + gap_s * number), f"{seed} {number}") for number in range(callers))
            ),
            f"{callers} callers, {gap_s * 1e6:.0f} us apart",
        )
    if kind == "log-normal":
        return lambda: Traffic(*closed(callers, log_normal(think_s, 0.5), seed)), f"{words}, {kind}"
    if kind == "half of them slowly":
        slow_s = service.fixed_s * between(1, 10)
        fast, slow = callers - callers // 2, callers // 2
        return (
            lambda: Traffic(
                *closed(fast, exponential(think_s), seed), *closed(slow, exponential(slow_s), f"{seed} slow")
            ),
            f"{words}, {kind}",
        )
    sizes = [1] * callers
    if kind == "with lists":
        sizes = [random.choice((1, 1, 2, 4, batch_size)) for _ in range(callers)]
    return (
        lambda: Traffic(
            *(Caller(exponential(think_s), f"{seed} {number}", size) for number, size in enumerate(sizes))
        ),
        f"{words}, {kind}",
    )


def _poisson(  # noqa: PLR0913, PLR0917
    random: Random, between: Between, service: Service, batch_size: int, load: float, seed: str
) -> Drawn:
    rate = load * service.capacity(batch_size)
    if random.random() < 0.5:  # noqa: PLR2004
        return lambda: Traffic(Stream(poisson_times(rate, seed))), f"load {load:.2f}"
    length = max(2, round(between(2, 4 * batch_size)))
    lists = random.uniform(0.1, 0.6)  # of all items
    return (
        lambda: Traffic(
            Stream(poisson_times(rate * (1 - lists), seed)),
            Stream(poisson_times(rate * lists / length, f"{seed} lists"), repeat(length)),
        ),
        f"load {load:.2f}, {lists:.0%} of it in lists of {length}",
    )


def _bursts(  # noqa: PLR0913, PLR0917
    random: Random, between: Between, service: Service, batch_size: int, load: float, seed: str
) -> Drawn:
    size = max(1, round(between(2, 2 * batch_size)))
    gap_s = between(5e-6, 0.05 * service.fixed_s)
    sizes = random.choice((always, exponential))(size)
    rate = load * service.capacity(batch_size) / size
    return (
        lambda: Traffic(Stream(burst_times(rate, sizes, gap_s, seed))),
        f"of {size} every {gap_s * 1e6:.0f} us, load {load:.2f}",
    )


def _on_off(  # noqa: PLR0913, PLR0917
    random: Random, between: Between, service: Service, batch_size: int, load: float, seed: str
) -> Drawn:
    factor, phase_s = random.choice((3, 10)), between(10e-3, 0.3)
    rate = load * service.capacity(batch_size)
    return (
        lambda: Traffic(Stream(on_off_times(rate, factor, phase_s, seed))),
        f"{factor}:1 for {phase_s * 1000:.0f} ms each, load {load:.2f}",
    )


def _periodic(  # noqa: PLR0913, PLR0917
    random: Random, between: Between, service: Service, batch_size: int, load: float, seed: str
) -> Drawn:
    del random, between
    rate = load * service.capacity(batch_size)
    return lambda: Traffic(Stream(periodic_times(rate, seed))), f"load {load:.2f}"


_OPEN: dict[str, Callable[[Random, Between, Service, int, float, str], Drawn]] = {
    "Poisson": _poisson,
    "bursts": _bursts,
    "on and off": _on_off,
    "periodic": _periodic,
}
