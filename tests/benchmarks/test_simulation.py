"""The shipped scheduler and patience against the exact optimum: a few points of the simulated grid."""

from __future__ import annotations

import pytest

from benchmarks.simulated import optimum, rules, scenarios
from benchmarks.simulated.scenarios import Scenario
from benchmarks.simulated.simulation import simulate

POISSON = [(16, 32, 0.1), (64, 8, 0.5), (16, 32, 0.8)]
CLOSED = [(16, 32, 1, 0.05), (64, 32, 20, 0.05), (16, 32, 40, 0.1), (16, 32, 20, 1.0), (64, 32, 64, 0.02)]


def means(scenario: Scenario) -> optimum.Means:
    if scenario.callers:
        return optimum.closed_loop(scenario.service, scenario.batch_size, scenario.callers, scenario.think_s)
    return optimum.poisson(scenario.service, scenario.batch_size, scenario.rate)


SCENARIOS = [
    *(scenarios.poisson(*point) for point in POISSON),
    *(scenarios.closed_loops(*point) for point in CLOSED),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_waits_when_it_pays_and_only_then(scenario: Scenario) -> None:
    """The simulation agrees with the theory about never waiting, and ours is within 3 % of the best."""
    exact = means(scenario)
    hasty = simulate(
        rules.greedy(scenario.batch_size), scenario.traffic(), scenario.service, calls=8000, skip=500
    )
    ours = simulate(
        rules.learned(scenario.batch_size), scenario.traffic(), scenario.service, calls=8000, skip=500
    )
    assert hasty.mean == pytest.approx(exact.greedy, rel=0.06)
    luck = hasty.mean / exact.greedy if scenario.rate else 1.0
    assert ours.mean / luck < 1.03 * exact.best


RULES = [rules.Mixedbread, rules.RayServe, rules.Triton, rules.BentoML, rules.greedy, rules.learned]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_answers_every_call(rule: type[rules.Mixedbread]) -> None:
    """Timers that are late, noise and lists included."""
    for seed in range(8):
        scenario = scenarios.random_scenario(seed)
        outcome = simulate(
            rule(scenario.batch_size),
            scenario.traffic(),
            scenario.service,
            calls=300,
            late_s=1e-4,
            seed=seed,
        )
        assert len(outcome.latencies) >= 300
        assert min(outcome.latencies) > 0
