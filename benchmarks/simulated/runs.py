"""One scenario, simulated: what callers get from the rule that ships and from others, beside the optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from batched._core.options import Options
from benchmarks.simulated import optimum, rules, scenarios
from benchmarks.simulated.scenarios import Scenario
from benchmarks.simulated.several import simulate_several
from benchmarks.simulated.simulation import Outcome, Rule, simulate

__all__ = [
    "BEST",
    "GREEDY",
    "ONE",
    "OPTIMUM",
    "OURS",
    "RULES",
    "Found",
    "at_random",
    "closed_loops",
    "poisson",
    "several_at_random",
    "several_closed_loops",
    "several_poisson",
    "spread",
]

_LATE_S = 70e-6  # what a timer is late on a common Linux
OURS = "ours"
GREEDY = "never waits"
OPTIMUM = "optimum"
BEST = "best fixed"
"""The best of never waiting and of fixed timeouts, chosen in hindsight."""
ONE = "one worker"

RULES: dict[str, Callable[[int], Rule]] = {
    OURS: rules.learned,
    GREEDY: rules.greedy,
    "0.1.5": rules.Mixedbread,
    "Ray Serve": rules.RayServe,
    "BentoML": rules.BentoML,
    "Triton": rules.Triton,
}
_FIXED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # timeouts, as parts of a batch's fixed cost, ...
_FIXED_S = (0.001, 0.005, 0.01)  # ... and those that people set


@dataclass(frozen=True)
class Found:
    """What one scenario gave: of every rule the mean latency and its p99 in seconds."""

    place: float  # of the curves: the load, or how many callers
    column: str
    name: str
    mean: dict[str, float]
    p99: dict[str, float]


def poisson(point: tuple[float, int, float], calls: int) -> Found:
    """Every rule under independent arrivals, beside the exact optimum."""
    scenario = scenarios.poisson(*point)
    exact = optimum.poisson(scenario.service, scenario.batch_size, scenario.rate)
    mean, p99 = _measured(scenario, calls, RULES)
    # All rules met the same arrivals; what is known exactly of one corrects for their luck.
    mean[OPTIMUM] = mean[GREEDY] * exact.best / exact.greedy
    return Found(point[2], f"{point[2]:.0%}", scenario.name, mean, p99)


def closed_loops(point: tuple[float, int, int, float], calls: int) -> Found:
    """Every rule with callers that come back, beside the exact optimum."""
    scenario = scenarios.closed_loops(*point)
    exact = optimum.closed_loop(scenario.service, scenario.batch_size, scenario.callers, scenario.think_s)
    # A rule that never waits for long is not to be judged by how late a timer is, as the optimum is not.
    mean, p99 = _measured(scenario, calls if point[2] > 1 else calls // 8, RULES, late_s=0.0)
    mean[OPTIMUM] = exact.best
    return Found(point[2], f"{point[3]:g} a", scenario.name, mean, p99)


def at_random(seed: int, calls: int) -> Found:
    """Ours, never waiting, and ten fixed timeouts."""
    scenario = scenarios.random_scenario(seed)
    fixed = [part * scenario.service.fixed_s for part in _FIXED]
    contenders: dict[str, Callable[[int], Rule]] = {OURS: rules.learned, GREEDY: rules.greedy}
    for timeout_s in (*fixed, *_FIXED_S):
        contenders[f"{timeout_s * 1000:.3g} ms"] = _window(timeout_s)
    mean, p99 = _measured(scenario, calls, contenders, seed=seed)
    return Found(seed, scenario.name.split()[1], scenario.name, mean, p99)


def spread(point: tuple[float, float, int, float], calls: int) -> Found:
    """Ours, never waiting, and fixed timeouts up to 1.5 times the longest time to come back."""
    scenario = scenarios.spread(*point)
    longest_s = point[3] / 1000
    contenders: dict[str, Callable[[int], Rule]] = {OURS: rules.learned, GREEDY: rules.greedy}
    for part in (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5):
        contenders[f"{part * longest_s * 1000:.3g} ms"] = _window(part * longest_s)
    mean, p99 = _measured(scenario, calls, contenders)
    mean[BEST] = min(seconds for name, seconds in mean.items() if name != OURS)
    return Found(point[2], f"{point[0]:g} ms", scenario.name, mean, p99)


def several_poisson(point: tuple[int, tuple[float, int, float]], calls: int) -> Found:
    """Independent arrivals for several workers, each with the load of one."""
    workers, (ratio, batch_size, load) = point
    return _several(workers, "Poisson", scenarios.poisson(ratio, batch_size, load * workers), calls)


def several_closed_loops(point: tuple[int, tuple[float, int, int, float]], calls: int) -> Found:
    """Callers that come back, as many for each of several workers as for one."""
    workers, (ratio, batch_size, callers, think) = point
    scenario = scenarios.closed_loops(ratio, batch_size, callers * workers, think)
    found = _several(workers, "closed", scenario, calls, late_s=0.0)
    one = scenarios.closed_loops(ratio, batch_size, callers, think)
    alone, _ = _measured(one, calls, {OURS: rules.learned, GREEDY: rules.greedy}, late_s=0.0)
    for name, mean in ((OURS, alone[OURS]), (GREEDY, alone[GREEDY])):
        found.mean[f"{ONE}, {name}"] = mean
    found.mean["think"] = scenario.think_s
    return found


def several_at_random(point: tuple[int, int], calls: int) -> Found:
    """A random scenario for several workers, each with the load of one."""
    workers, seed = point
    return _several(workers, "random", scenarios.random_scenario(seed, workers), calls, seed=seed)


def _several(  # noqa: PLR0913
    workers: int, kind: str, scenario: Scenario, calls: int, *, late_s: float = _LATE_S, seed: int = 0
) -> Found:
    """Ours, never waiting, and ten fixed timeouts."""
    adaptive = Options(batch_size=scenario.batch_size, max_concurrent_batches=workers)
    options = {OURS: adaptive}
    fixed = [part * scenario.service.fixed_s for part in _FIXED]
    for timeout_s in (0.0, *fixed, *_FIXED_S):
        name = f"{timeout_s * 1000:.3g} ms" if timeout_s else GREEDY
        options[name] = replace(adaptive, adaptive=False, timeout_ms=timeout_s * 1000)
    mean: dict[str, float] = {}
    p99: dict[str, float] = {}
    for name, each in options.items():
        outcome = simulate_several(
            each,
            scenario.traffic(),
            scenario.service,
            calls=calls,
            skip=max(300, 10 * scenario.callers),
            late_s=late_s,
            seed=seed,
        )
        mean[name], p99[name] = outcome.mean, outcome.p99
    mean[BEST] = min(seconds for name, seconds in mean.items() if name != OURS)
    return Found(workers, f"{workers} workers, {kind}", scenario.name, mean, p99)


def _window(timeout_s: float) -> Callable[[int], Rule]:
    return lambda batch_size: rules.window(batch_size, timeout_s)


def _measured(
    scenario: Scenario,
    calls: int,
    contenders: dict[str, Callable[[int], Rule]],
    *,
    late_s: float = _LATE_S,
    seed: int = 0,
) -> tuple[dict[str, float], dict[str, float]]:
    outcomes: dict[str, Outcome] = {}
    skip = max(300, 10 * scenario.callers)  # what is learned while it counts is a matter for tests
    for name, contender in contenders.items():
        outcomes[name] = simulate(
            contender(scenario.batch_size),
            scenario.traffic(),
            scenario.service,
            calls=calls,
            skip=skip,
            late_s=late_s,
            seed=seed,
        )
    return (
        {name: outcome.mean for name, outcome in outcomes.items()},
        {name: outcome.p99 for name, outcome in outcomes.items()},
    )
