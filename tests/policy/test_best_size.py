"""The size of full batches that serves best: found, kept, given up, and tried at little cost."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.best_size import BestSize
from tests.kit.effort import times

Cost = Callable[[int], float]

KNEE = 8


def linear(size: int) -> float:
    return 0.005 + 0.0001 * size


def superlinear(size: int) -> float:
    return 0.002 + 0.00025 * size if size <= KNEE else 0.004 * (size / KNEE) ** 1.5


def tiles(size: int) -> float:
    return 0.004 * -(-size // 16)


class Worker:
    """Runs batches back to back, and asks for trials as the batcher does."""

    def __init__(self, sizes: BestSize, cost: Cost, noise: float = 0.05, seed: int = 1) -> None:
        self.sizes = sizes
        self.cost = cost
        self.noise = noise
        self.random = Random(seed)
        self.now = 0.0
        self.trials: list[tuple[int, int]] = []  # the size, and that of a usual batch
        self.lost = 0.0  # in trials, beside the same items in usual batches

    def run(self, batches: int, waiting: int = 1 << 20, fits: int = 1 << 20) -> None:
        for _ in range(batches):
            usual = min(self.sizes.size, waiting, fits)
            size = self.sizes.try_size(waiting, fits) if self.sizes.is_due else None
            if size is not None:
                self.trials.append((size, usual))
                self.lost += self.cost(size) - size * self.cost(usual) / usual
            size = size or usual
            assert 1 <= size <= min(self.sizes.most, waiting, fits)
            started = self.now
            self.now += self.cost(size) * (1 + self.random.uniform(-1, 1) * self.noise)
            self.sizes.ran(size, started, self.now)


@pytest.mark.parametrize(
    ("cost", "best"),
    [(linear, 32), (superlinear, 8), (lambda size: 0.001 * size**2, 1), (lambda _: 0.01, 32)],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_size_is_found(cost: Cost, best: int, seed: int) -> None:
    """From the largest on, by halves, while the queue always fills batches."""
    worker = Worker(BestSize(32), cost, seed=seed)
    worker.run(2000)
    assert worker.sizes.size == best


@pytest.mark.parametrize("most", [32, 64, 256])
def test_a_limit_that_no_batch_exceeds_is_no_smaller_size(most: int) -> None:
    """32 callers, of which one or the other is late: two tiles for nearly as many. So one tile is better."""
    worker = Worker(BestSize(most), tiles)
    for _ in range(2000):
        worker.run(1, waiting=worker.random.randint(26, 32))
    assert worker.sizes.size == 16


@pytest.mark.parametrize("most", [2, 3, 24, 33, 1000])
def test_any_number_may_be_the_most(most: int) -> None:
    """Sizes are powers of two up to it, and itself."""
    worker = Worker(BestSize(most), linear)
    worker.run(500)
    assert worker.sizes.size == most
    worker.cost = superlinear
    worker.run(3000)
    assert worker.sizes.size == (8 if most >= 16 else worker.sizes.size)


@pytest.mark.parametrize("seed", range(3))
def test_a_size_is_given_up_when_the_function_changes(seed: int) -> None:
    """And taken again when it changes back."""
    worker = Worker(BestSize(32), linear, seed=seed)
    for cost, best in ((linear, 32), (superlinear, 8), (linear, 32)):
        worker.cost = cost
        worker.run(2000)
        assert worker.sizes.size == best


@pytest.mark.parametrize("noise", [0.05, 0.5])
@pytest.mark.parametrize("cost", [linear, superlinear, tiles])
def test_trials_take_at_most_two_percent_of_the_time(cost: Cost, noise: float) -> None:
    """Counting what they took beyond what their items take in usual batches."""
    worker = Worker(BestSize(32), cost, noise)
    for _ in range(40):
        worker.run(100)
        assert worker.lost <= 0.02 * worker.now + 3 * noise * cost(32)
    assert worker.trials


@pytest.mark.parametrize("cost", [linear, superlinear])
def test_trials_become_rare(cost: Cost) -> None:
    """Once it is sure which size is better."""
    worker = Worker(BestSize(32), cost)
    worker.run(1000)
    begun = len(worker.trials)
    worker.run(10_000)
    assert len(worker.trials) - begun <= 10_000 / 250


def test_natural_sizes_are_learned_from_without_a_trial() -> None:
    """Where the queue grew slowly, the best size is known when batches become too large."""
    sizes = BestSize(32)
    now = 0.0
    for size in [1, 2, 4, 8] * 6 + [32] * 10:
        sizes.ran(size, now, now + superlinear(size))
        now += superlinear(size)
    assert sizes.size == KNEE


def test_noise_is_no_reason_to_leave_a_good_size() -> None:
    """Times that vary by half."""
    worker = Worker(BestSize(32), linear, noise=0.5)
    for _ in range(50):
        worker.run(100)
        assert worker.sizes.size == 32


def test_one_very_long_batch_changes_nothing() -> None:
    """A pause of the machine."""
    worker = Worker(BestSize(32), superlinear)
    worker.run(1000)
    assert worker.sizes.size == KNEE
    worker.sizes.ran(KNEE, worker.now, worker.now + 100.0)
    worker.now += 100.0
    for _ in range(100):
        worker.run(1)
        assert worker.sizes.size == KNEE


def test_where_halves_take_as_long_a_worker_with_time_to_spare_has_smaller_batches() -> None:
    """They answer sooner; without time to spare it makes no difference, and nothing changes."""
    for pause, best in ((0.0, 32), (0.05, 1)):
        sizes = BestSize(32)
        now = 0.0
        for _ in range(40):
            for size in (1, 2, 4, 8, 16, 32):
                sizes.ran(size, now, now + 0.001 * size)
                now += 0.001 * size + pause
        assert sizes.size == best


@pytest.mark.parametrize(("pause", "size"), [(0.0, 4), (0.3, 2)])
def test_without_time_to_spare_the_larger_of_two_like_sizes_is_taken(pause: float, size: int) -> None:
    """With less evidence than a smaller one needs: there a hundredth of the capacity is much."""
    sizes, now = BestSize(4), 0.0

    def run(batches: int, items: int, each: float) -> None:
        nonlocal now
        for number in range(batches):
            started = now + pause * items * each
            now = started + items * each * (1.4 if number % 2 else 0.6)
            sizes.ran(items, started, now)

    for _ in range(20):
        run(2, 4, 0.0135)
        run(2, 2, 0.0120)
    assert sizes.size == 2
    for _ in range(20):
        run(2, 4, 0.0092)
        run(2, 2, 0.0120)
    assert sizes.size == size


@pytest.mark.parametrize("knee", [2, 4, 8])
def test_in_a_flood_a_small_best_size_is_found_soon(knee: int) -> None:
    """Of 20 runs 19 find it within 200 batches, though only trials have fewer than 64 items."""

    def is_found(seed: int) -> bool:
        random, sizes, now = Random(seed), BestSize(64), 0.0
        for _ in range(200):
            tried = sizes.try_size(1_000_000, 64) if sizes.is_due else None
            size, started = tried or sizes.size, now
            now += (0.002 + 0.0005 * size + 0.003 * max(size - knee, 0)) * random.lognormvariate(0, 0.3)
            sizes.ran(size, started, now)
            if sizes.size <= knee:
                return True
        return False

    assert sum(map(is_found, range(20))) >= 19


@given(
    most=st.integers(1, 70),
    batches=st.lists(
        st.tuples(st.integers(1, 200), st.integers(1, 70), st.floats(0, 10), st.floats(0, 10)), max_size=200
    ),
)
def test_whatever_happens_a_size_is_one_that_may_be(
    most: int, batches: list[tuple[int, int, float, float]]
) -> None:
    """At least 1, and never above the most, what waits, or what fits into memory."""
    sizes = BestSize(most)
    now = 0.0
    for waiting, fits, seconds, pause in batches:
        size = sizes.try_size(waiting, fits)
        usual = min(sizes.size, waiting, fits)
        assert 1 <= sizes.size <= most
        if size is not None:
            assert 1 <= size <= min(most, waiting, fits)
            assert size != usual
        sizes.ran(size or usual, now + pause, now + pause + seconds)
        now += pause + seconds


def test_each_gets_its_own_best() -> None:
    """Of many random costs: a fixed part, a part per item, and a knee from which on all takes longer."""
    random = Random(3)
    for seed in range(times(40)):
        fixed, each, knee = (
            random.uniform(0.0005, 0.01),
            random.uniform(1e-5, 1e-3),
            random.choice((2, 4, 8, 64)),
        )

        def cost(size: int, fixed: float = fixed, each: float = each, knee: int = knee) -> float:
            return (fixed + each * min(size, knee)) * max(size / knee, 1.0) ** 1.5

        worker = Worker(BestSize(32), cost, seed=seed)
        worker.run(4000)
        size = worker.sizes.size
        best = min(cost(other) / other for other in (1, 2, 4, 8, 16, 32))
        assert cost(size) / size <= 1.06 * best


def knee(size: int) -> float:
    return 0.001 + 0.0001 * size if size <= KNEE else 0.0018 + 0.001 * (size - KNEE)


def test_a_knee_is_found_soon_by_callers_in_a_closed_loop() -> None:
    """Within 80 batches in 95 % of runs: a trial of a larger size spends nothing that a smaller one needs."""
    found = sorted(batches_until_found(seed) for seed in range(times(200)))
    assert found[int(0.95 * len(found))] <= 80


def batches_until_found(seed: int) -> int:
    """Return after how many batches 64 callers, each back after a moment, have batches of the knee's size."""
    random = Random(seed)
    noise, think_s = random.choice([0.02, 0.05, 0.1]), random.choice([0.02e-3, 0.25e-3, 1e-3, 4e-3])
    driver = ManualDriver(Options())
    now, coming = 0.0, [random.expovariate(1 / think_s) for _ in range(64)]
    for batch in range(400):
        while (delay := driver.delay(now)) != 0.0:
            following = min(coming, default=inf)
            now = max(now, following if delay is None else min(now + delay, following))
            for at in [at for at in coming if at <= now]:
                coming.remove(at)
                driver.push(Call().begin(None, 1, 1, False, at))
        running = driver.pop(now)
        now += knee(running.size) * (1 + random.uniform(-1, 1) * noise)
        coming += [now + random.expovariate(1 / think_s) for _ in driver.finish(running, now)]
        if driver.batcher.lessons.best == KNEE:
            return batch
    return 400
