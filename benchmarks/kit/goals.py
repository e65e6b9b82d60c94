"""What each row is to reach. Data only: a row is judged by the goal of its name, and one without is shown."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GOALS", "Goal"]


@dataclass(frozen=True)
class Goal:
    """A bound on a row's figure."""

    bound: float
    at_least: bool = False

    def met(self, figure: float) -> bool:
        """Say whether `figure` is within the bound."""
        return figure >= self.bound if self.at_least else figure <= self.bound

    def strain(self, figure: float) -> float:
        """Return how much of the bound `figure` uses up: at most 1 is met, 2 is missed by a factor of two."""
        used, allowed = (self.bound, figure) if self.at_least else (figure, self.bound)
        return used / allowed if allowed else float("inf")


GOALS = {
    "sync / two locks, one core": Goal(2.0),
    "sync / executor, one core": Goal(1.0),
    "sync / two locks": Goal(2.0),
    "sync / executor": Goal(1.0),
    "method / function, at the door": Goal(1.3),
    "acall / hand-off, one core": Goal(1.3),
    "acall / hand-off": Goal(1.3),
    "list of 1M, batches of 1024": Goal(1.4),
    "list of 1M, batches of 32": Goal(4.0),
    "list memory": Goal(16.0),  # bytes
    "CPU, 64 tasks": Goal(1.7),
    "CPU, 64 threads": Goal(1.7),
    "CPU, 1 task": Goal(1.7),
    "CPU, 100 tasks": Goal(1.7),
    "CPU, 10,000 tasks": Goal(1.7),
    "backlog of 1M / of 1k": Goal(1.2),
    "pending memory": Goal(450.0),  # bytes
    "ragged rows / filled by hand": Goal(1.5),
    "ragged rows / 0.1.5": Goal(0.2),
    "equal rows / slices": Goal(2.0),
    "equal rows / 0.1.5": Goal(50.0, at_least=True),
    "capacity, 1,000 tasks": Goal(0.96, at_least=True),
    "capacity, 64 threads": Goal(0.93, at_least=True),
    "singles beside lists, p99": Goal(1.3),
    "lists beside singles": Goal(0.95, at_least=True),
    "list of 256 beside singles": Goal(5.0),
    "Poisson at 10 %": Goal(1.05),
    "Poisson at 30 %": Goal(1.05),
    "Poisson at 60 %": Goal(1.05),
    "Poisson at 80 %": Goal(1.05),
    "Poisson at 95 %": Goal(1.05),
    "idle": Goal(0.001),  # seconds
    "await / call_soon": Goal(2.0),
    "loop CPU, 64 tasks": Goal(1.5),
    "loop CPU, 64 tasks / aiodataloader": Goal(1.0),
    "loop list of 100k / aiodataloader": Goal(20.0, at_least=True),
    "loop capacity, 1,000 tasks": Goal(0.97, at_least=True),
    "loop capacity, plain function": Goal(0.97, at_least=True),
    "idle loop": Goal(0.001),  # seconds
    "learning, a lone caller": Goal(1.0),
    "learning, 2 callers": Goal(1.0),
    "learning, 20 callers": Goal(1.0),
    "learning, random arrivals at 10 %": Goal(1.0),
    "learning, random arrivals at 60 %": Goal(1.0),
    "learning, 1,000 callers": Goal(1.0),
    "patience at 10 %": Goal(1.05),
    "patience at 30 %": Goal(1.05),
    "patience at 60 %": Goal(1.05),
    "patience at 80 %": Goal(1.05),
    "patience at 95 %": Goal(1.05),
    "patience / 0.1.5 at 10 %": Goal(1.0),
    "patience / 0.1.5 at 30 %": Goal(1.0),
    "patience / 0.1.5 at 60 %": Goal(1.0),
    "patience / 0.1.5 at 80 %": Goal(1.0),
    "patience / 0.1.5 at 95 %": Goal(1.0),
    "returning, 20 threads": Goal(1.25, at_least=True),
    # Shares of `encode` of all sentences as one list, with a real model.
    "real model, 32 callers": Goal(0.80, at_least=True),
    "real model, 32 callers, features": Goal(0.80, at_least=True),
    "real model, 128 callers": Goal(0.95, at_least=True),
    "real model, one list": Goal(0.97, at_least=True),
    "real model, one caller": Goal(0.98, at_least=True),  # of one by one
    "real model / best peer": Goal(1.9, at_least=True),
    "real model, p99 / best peer": Goal(1.0),
    "real model, singles beside a list": Goal(2.0),  # batches
    # Over HTTP
    "4ms / better floor, 1": Goal(0.95, at_least=True),
    "4ms / better floor, 8": Goal(0.95, at_least=True),
    "4ms / better floor, 32": Goal(0.95, at_least=True),
    "4ms / better floor, 128": Goal(0.95, at_least=True),
    "20ms / better floor, 1": Goal(0.95, at_least=True),
    "20ms / better floor, 8": Goal(0.95, at_least=True),
    "20ms / better floor, 32": Goal(0.95, at_least=True),
    "20ms / better floor, 128": Goal(0.95, at_least=True),
    "minilm / plain, 1": Goal(0.97, at_least=True),
    "minilm / plain, 32": Goal(1.6, at_least=True),
    "minilm / plain, 128": Goal(1.6, at_least=True),
    "minilm / best peer, 32": Goal(1.6, at_least=True),
    "minilm / best peer, 128": Goal(1.6, at_least=True),
    "minilm p99 / best peer, 32": Goal(0.6),
    "minilm p99 / best peer, 128": Goal(0.6),
    "errors": Goal(0.0),
    "strangers failed": Goal(0.0),
    "executed for nobody": Goal(0.0),
    "dropped at SIGTERM": Goal(0.0),
    # In simulation; all but the last are of mean latencies.
    "Poisson over the optimum, worst": Goal(1.03),
    "Poisson over the optimum, median": Goal(1.005),
    "closed loops over the optimum, worst": Goal(1.10),
    "closed loops over the optimum, median": Goal(1.01),
    "random scenarios over greedy, worst": Goal(1.07),
    "random scenarios over greedy, geometric mean": Goal(0.93),
    "random scenarios over the best fixed timeout, geometric mean": Goal(1.0),
    "closed loops over greedy, worst p99": Goal(1.25),
}
