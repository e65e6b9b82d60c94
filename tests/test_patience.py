"""When a batch starts: what the learned patience does, told a time that nobody has to wait for."""

from __future__ import annotations

import math
import time
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batched
from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.batch_cost import BatchCost
from batched._policy.window import Window
from tests.kit.gate import Gate

TIMEOUT_S = 0.005
FIXED_S = 0.004
EACH_S = 0.0001


class Server:
    """One function that is free or not, on a clock of its own, and those that call it."""

    def __init__(self, patience: Window, batch_size: int = 32) -> None:
        self.driver = ManualDriver(Options(batch_size=batch_size, adaptive=patience.learns))
        self.driver.batcher.next_batch.policy = patience
        self.patience = patience
        self.now = 0.0
        self.slow = 1.0
        self.fails = False
        self.coming: list[tuple[float, int, Any]] = []  # when, how many items, and when that one comes back
        self.inbox: list[Call] = []
        self.batches: list[int] = []
        self.held: list[float] = []  # how long each batch waited while the function was free
        self.latencies: list[float] = []

    def call(self, at: float, back_s: Any = None, size: int = 1) -> None:
        """Have somebody call, and again `back_s()` seconds after each answer; None: never again."""
        self.coming.append((at, size, back_s))

    def let_come(self, until: float, number: float = math.inf) -> float:
        """Put into the inbox who comes until then; stop, and return when, after so many."""
        self.coming.sort(key=lambda entry: entry[0])
        while self.coming and self.coming[0][0] <= until:
            at, size, back_s = self.coming.pop(0)
            call = Call().begin(id, None, size, True, at)
            call.waiter = back_s
            self.inbox.append(call)
            number -= 1
            if number <= 0:
                return at
        return until

    def run(self, batches: int) -> None:
        """Run so many batches, as the worker does."""
        for _ in range(batches):
            free = self.now
            while True:
                self.let_come(self.now)
                self.take_in()
                delay = self.driver.delay(self.now)
                if delay is None:
                    assert self.coming, "nobody will ever call"
                    self.now = min(entry[0] for entry in self.coming)
                elif delay:
                    awaited = self.driver.batcher.inbox.wake_after or math.inf
                    self.now = self.let_come(self.now + delay, awaited)
                else:
                    break
            first = self.driver.queue.oldest()
            batch = self.driver.pop(self.now)
            self.held.append(self.now - max(free, first))
            self.batches.append(batch.size)
            self.now += (FIXED_S + EACH_S * batch.size) * self.slow
            batch.failed = batch.size if self.fails else 0
            for call in self.driver.finish(batch, self.now):
                self.latencies.append(self.now - call.arrived)
                if call.waiter is not None:
                    self.call(self.now + call.waiter(), call.waiter, call.size)
            self.let_come(math.nextafter(self.now, 0))

    def take_in(self) -> None:
        """Queue the calls of the inbox."""
        self.driver.batcher.inbox.arriving += self.inbox
        self.inbox.clear()


def adaptive(batch_size: int = 32, timeout_s: float = TIMEOUT_S) -> Server:
    return Server(AdaptiveWindow(timeout_s, batch_size), batch_size)


def soon() -> float:
    return 50e-6


def crowd(server: Server, callers: int, seed: int = 0) -> None:
    """Have so many call and come back after 0.05 to 0.3 ms."""
    random = Random(seed)
    for _ in range(callers):
        server.call(server.now + random.uniform(0, 1e-4), lambda: random.uniform(5e-5, 3e-4))


def test_a_burst_within_the_first_window_is_one_batch() -> None:
    """Nothing is known yet: the batch starts when its oldest item is `timeout_ms` old."""
    server = adaptive(batch_size=64)
    for number in range(32):
        server.call(1 + number * TIMEOUT_S / 33)
    server.run(1)
    assert server.batches == [32]
    assert server.held == pytest.approx([TIMEOUT_S])


def test_ten_callers_make_two_full_batches() -> None:
    """With `batch_size=5` and a window that they are all in."""
    server = adaptive(batch_size=5, timeout_s=0.05)
    for number in range(10):
        server.call(number * 0.001)
    server.run(2)
    assert server.batches == [5, 5]


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_lone_caller_soon_waits_no_more(think_s: float) -> None:
    """It waits in its first five calls at most, whatever it does between them."""
    server = adaptive()
    server.call(0, lambda: think_s)
    server.run(200)
    assert server.held[0] == pytest.approx(TIMEOUT_S)
    assert not any(server.held[5:])


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_caller_left_alone_soon_waits_no_more(think_s: float) -> None:
    """Once a crowd has left it waits in five calls at most."""
    server = adaptive()
    crowd(server, 20)
    server.run(300)
    assert server.batches[-1] == 20
    server.coming.clear()
    server.call(server.now, lambda: think_s)
    server.run(100)
    assert not any(server.held[305:])


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_caller_after_bursts_soon_waits_no_more(think_s: float) -> None:
    """Nor after bursts, which have taught it that a call seldom comes alone."""
    server = adaptive()
    random = Random(0)
    for start in accumulate(random.uniform(0.05, 0.15) for _ in range(100)):
        for number in range(16):
            server.call(start + number * 30e-6)
    while server.coming:
        server.run(1)
    assert sum(server.batches[-20:]) / 20 > 12
    before = len(server.held)
    server.call(server.now + 0.1, lambda: think_s)
    server.run(100)
    assert not any(server.held[before + 5 :])


def test_returning_callers_are_waited_for() -> None:
    """All of a crowd share every batch, and it starts when the last of them is back."""
    server = adaptive()
    crowd(server, 20)
    server.run(200)
    assert server.batches[-100:] == [20] * 100
    assert max(server.held[-100:]) < 300e-6
    assert server.driver.stats(server.now).closed["callers back"] >= 100


def test_two_callers_find_each_other() -> None:
    """Though each batch of one ends while the other waits already."""
    server = adaptive()
    server.call(0, soon)
    server.call(TIMEOUT_S + 0.001, soon)
    server.run(100)
    assert server.batches[-50:] == [2] * 50


def test_lists_are_waited_for_like_single_items() -> None:
    """Their callers are counted, not their items."""
    server = adaptive()
    random = Random(1)
    for size in (1, 2, 3, 4, 8):
        server.call(random.uniform(0, 1e-4), lambda: random.uniform(5e-5, 3e-4), size)
    server.run(100)
    assert server.batches[-50:] == [18] * 50


def test_independent_calls_are_not_waited_for() -> None:
    """Each batch takes what is there: the mean wait is that of the plain rule that never waits."""
    random = Random(2)
    times = list(accumulate(random.expovariate(2000) for _ in range(5000)))
    means = []
    for patience in (AdaptiveWindow(TIMEOUT_S, 32), Window(0)):
        server = Server(patience)
        for at in times:
            server.call(at)
        while server.coming:
            server.run(1)
        means.append(sum(server.latencies) / len(server.latencies))
    assert means[0] < 1.02 * means[1]


def test_calls_that_come_by_the_clock_are_not_waited_for() -> None:
    """Though each comes shortly after an answer, as if it had been waiting for it."""
    means = []
    for patience in (AdaptiveWindow(TIMEOUT_S, 32), Window(0)):
        server = Server(patience)
        random = Random(9)
        for number in range(3000):
            server.call(number * 1.05 * (FIXED_S + EACH_S))
        while server.coming:
            server.slow = random.uniform(0.85, 1.15)
            server.run(1)
        means.append(sum(server.latencies[100:]) / len(server.latencies[100:]))
    assert means[0] < 1.02 * means[1]


def test_a_burst_that_hits_an_idle_function_is_waited_for() -> None:
    """Once bursts are known, only what is needed to see the end of one is waited."""
    server = adaptive()
    random = Random(3)
    starts = list(accumulate(random.uniform(0.05, 0.15) for _ in range(100)))
    for start in starts:
        for number in range(16):
            server.call(start + number * 30e-6)
    while server.coming:
        server.run(1)
    assert server.batches[-40:] == [16] * 40
    assert max(server.held[-40:]) < 16 * 30e-6 + 4 * 30e-6


def test_the_service_time_may_drift() -> None:
    """The function becomes five times as slow, or as fast, and the crowd stays together."""
    server = adaptive()
    crowd(server, 20)
    server.run(100)
    for slow in (5.0, 1.0, 0.2, 1.0):
        server.slow = slow
        server.run(60)
        assert server.batches[-20:] == [20] * 20
        learned = server.driver.stats(server.now).learned
        assert learned is not None
        full = (learned.batch_ms + 20 * learned.item_ms) / 1000
        assert full == pytest.approx(slow * (FIXED_S + 20 * EACH_S), rel=0.1)


def test_where_a_wait_saves_nothing_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a few microseconds: nobody can be back before it pays to run again."""
    server = adaptive()
    server.slow = 1e-3
    crowd(server, 20)
    server.run(100)
    for event in ("arrived", "start", "popped", "done"):
        monkeypatch.delattr(AdaptiveWindow, event)
        monkeypatch.delattr(Window, event, raising=False)
    server.run(100)
    assert server.held[-100:] == [0.0] * 100
    learned = server.driver.stats(server.now).learned
    assert learned is not None
    assert learned.batch_ms == pytest.approx(1000 * FIXED_S * server.slow, rel=0.1)


def test_a_fast_function_that_becomes_slow_is_learned_anew() -> None:
    """And rests again when it is as fast as before; one slow batch alone makes it look, and no more."""
    server = adaptive()
    server.slow = 1e-3
    crowd(server, 20)
    server.run(100)
    server.slow = 1.0
    server.run(1)
    assert not server.patience.is_suspended
    server.slow = 1e-3
    server.run(30)
    assert server.patience.is_suspended
    server.slow = 1.0
    server.run(300)
    assert server.batches[-20:] == [20] * 20
    server.slow = 1e-3
    server.run(300)
    assert server.patience.is_suspended
    assert server.held[-100:] == [0.0] * 100


def test_the_first_batch_and_outliers_hardly_count() -> None:
    """One that compiles or loads says nothing of the others."""
    cost = BatchCost()
    cost.add(4, 30.0)
    random = Random(4)
    for number in range(100):
        size = random.randint(1, 20)
        cost.add(size, 5.0 if number % 20 == 19 else FIXED_S + EACH_S * size)
    assert cost.fixed == pytest.approx(FIXED_S, rel=0.3)
    assert cost.each == pytest.approx(EACH_S, rel=0.9)


def test_sizes_that_are_alike_teach_nothing_about_items() -> None:
    """What was known of them stays, whatever noise there is."""
    cost = BatchCost()
    random = Random(5)
    for _ in range(100):
        size = random.randint(1, 20)
        cost.add(size, FIXED_S + EACH_S * size)
    known = cost.each
    for _ in range(200):
        cost.add(20, (FIXED_S + EACH_S * 20) * random.uniform(0.9, 1.1))
    assert known == pytest.approx(EACH_S, rel=0.01)
    assert cost.each == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(("fixed", "each"), [(2e-3, 1e-5), (1e-4, 0.0), (0.0, 1e-3)])
def test_what_is_known_never_runs_away(fixed: float, each: float, noise: float) -> None:
    """Where an item costs next to nothing, or everything, and noise hides it."""
    random = Random(6)
    for _ in range(10):
        cost = BatchCost()
        least = random.choice((1, 8, 24, 56))
        for number in range(3000):
            size = random.randint(least, 64)
            cost.add(size, (fixed + each * size) * max(random.gauss(1.0, noise), 0.05))
            full = fixed + each * 64
            assert number < 30 or 0.0 < cost.fixed + 64 * cost.each < 2 * full
            assert number < 30 or min(cost.fixed, cost.each) >= 0.0


def test_bursts_of_long_ago_fade_to_nothing() -> None:
    """Those of a function that took a minute, while its callers were seconds apart, and that is fast now."""
    patience = AdaptiveWindow(TIMEOUT_S, 32)
    now = 1000.0

    def batch(arrivals: list[float], duration: float) -> None:
        nonlocal now
        patience.arrived(arrivals)
        now = arrivals[-1]
        patience.start(arrivals[0], len(arrivals), now)
        patience.popped(now)
        now += duration
        patience.done(len(arrivals), len(arrivals), len(arrivals), now, now - duration)

    for _ in range(10):
        batch([now + 1.5 * number for number in range(20)], 60.0)
    assert patience._bursts._close_s > patience._bursts._close > 1.0
    for _ in range(40_000):
        batch([now + 0.05], 0.002)
    assert patience._bursts._close < 1e-9


def test_batches_that_fail_teach_nothing_about_time() -> None:
    """They end at once; yet their callers come back like others."""
    server = adaptive()
    crowd(server, 20)
    server.run(100)
    before = server.driver.stats(server.now).learned
    assert before is not None
    server.fails = True
    server.slow = 0.01
    server.run(50)
    after = server.driver.stats(server.now).learned
    assert after is not None
    assert (after.batch_ms, after.item_ms) == (before.batch_ms, before.item_ms)
    assert server.batches[-20:] == [20] * 20


def test_who_has_left_is_not_waited_for() -> None:
    """A caller that was cancelled while its batch ran is no more expected."""
    server = adaptive()
    crowd(server, 2)
    server.run(50)
    server.let_come(server.now + 1)
    server.take_in()
    server.now += 0.001
    assert server.driver.delay(server.now + 1) == 0.0
    batch = server.driver.pop(server.now)
    stays, leaves = (call for call, _, _ in batch.slices)
    leaves.left = "cancelled"
    server.driver.drop(leaves)
    server.now += FIXED_S
    assert server.driver.finish(batch, server.now) == [stays]
    server.driver.push(Call().begin(id, None, 1, False, server.now + soon()))
    assert server.driver.delay(server.now + soon()) == 0.0


def test_the_wait_is_bounded_by_the_timeout() -> None:
    """Counted from when the function was free, or from the first item if that came later."""
    timeout_s = 0.0002
    server = adaptive(timeout_s=timeout_s)
    random = Random(6)
    for _ in range(20):
        server.call(0, lambda: random.expovariate(1 / 0.0004))
    server.run(500)
    assert max(server.held[10:]) > 0
    assert max(server.held) < timeout_s + 1e-12


TRACES = st.lists(
    st.tuples(
        st.floats(0, 0.02).map(lambda gap: gap if gap > 1e-5 else 0.0), st.integers(1, 8), st.booleans()
    ),
    min_size=1,
    max_size=60,
)


@given(TRACES, st.integers(1, 9))
def test_without_a_timeout_nothing_ever_waits(trace: list[tuple[float, int, bool]], batch_size: int) -> None:
    """The batches of small calls are those of the plain window of 0, and so are their times.

    Beside small calls, larger ones have fewer items in a batch where that has been learned to pay.
    """
    runs = []
    for patience in (AdaptiveWindow(0.0, batch_size), Window(0.0)):
        server = Server(patience, batch_size)
        for at, (_, size, returns) in zip(accumulate(gap for gap, _, _ in trace), trace, strict=True):
            server.call(at, soon if returns else None, size)
        for _ in range(100):
            if server.coming or server.inbox or server.driver.queue.items:
                server.run(1)
        runs.append((server.batches, server.now))
        assert not any(server.held)
    assert runs[0] == runs[1]


@given(
    st.lists(
        st.tuples(st.floats(-0.01, 0.01), st.floats(0, 0.01), st.integers(1, 9), st.integers(0, 3)),
        max_size=80,
    )
)
def test_times_that_make_no_sense_do_no_harm(events: list[tuple[float, float, int, int]]) -> None:
    """Calls told late or out of order, batches of no time, answers to more or fewer than there are."""
    patience = AdaptiveWindow(TIMEOUT_S, 10)
    now = 1.0
    for skew, seconds, size, answered in events:
        now += seconds
        patience.arrived([now + skew] * size)
        start = patience.start(now - seconds, size, now)
        assert start <= max(now, patience._cohorts.answered_at, now - seconds) + TIMEOUT_S
        assert patience.awaited >= 1
        patience.popped(now)
        patience.done(size, 1, answered, now, now - abs(skew) if skew > 0 else None)
    assert patience.learned() is None or patience.learned().capacity > 0  # type: ignore[union-attr]


def test_a_wake_up_that_is_always_late_is_expected_to_be() -> None:
    """And one that was late once is not."""
    server = adaptive()
    patience = server.patience
    assert isinstance(patience, AdaptiveWindow)
    random = Random(7)
    for _ in range(10):
        server.call(0, lambda: 5e-5)
        server.call(0, lambda: random.expovariate(1 / 0.05))
    server.run(50)
    before = patience._held.late_s
    delay = server.driver.delay
    server.driver.delay = lambda now: (d := delay(now)) and d + 0.0005  # type: ignore[method-assign]
    server.run(100)
    assert before < 0.00015
    assert 0.0003 < patience._held.late_s < 0.0007


def test_an_eternity_of_calls_overflows_nothing() -> None:
    """Weights that grow with every batch are scaled down in time."""
    patience = AdaptiveWindow(TIMEOUT_S, 4)
    now = 0.0
    for number in range(20_000):
        patience.arrived([now + 1e-4])
        patience.start(now + 1e-4, 1, now + 1e-4)
        patience.popped(now + 1e-4)
        now += 0.005
        patience.done(1, 1, 1 + number % 2, now, now - 0.0049)
    for profile in patience._cohorts._profiles:
        assert all(map(math.isfinite, [*profile.returns, profile.weight]))
    assert patience._cohorts._profile.weight > 0


def test_stats_say_what_was_learned() -> None:
    """The costs, how long batches were held back, and the most that the function can do."""
    server = adaptive()
    random = Random(8)
    for _ in range(20):
        server.call(0, lambda: random.expovariate(1 / 0.001))
    assert server.driver.stats(0).learned is None
    server.run(300)
    stats = server.driver.stats(server.now)
    assert stats.learned is not None
    assert stats.learned.batch_ms == pytest.approx(FIXED_S * 1000, rel=0.02)
    assert stats.learned.item_ms == pytest.approx(EACH_S * 1000, rel=0.1)
    assert stats.learned.capacity == pytest.approx(32 / (FIXED_S + 32 * EACH_S), rel=0.02)
    assert 0 < stats.learned.wait_ms < TIMEOUT_S * 1000
    assert "4 ms a batch + 0.1 ms an item, so at most 4,4" in str(stats)
    assert set(stats.closed) <= {"callers back", "no gain", "waited", "trial", "window"}


@pytest.mark.parametrize("options", [{"adaptive": False}, {"timeout_ms": 0}, {"batch_size": 1}])
def test_who_wants_no_learning_gets_the_plain_window(options: dict[str, Any]) -> None:
    """And nothing is kept of what happens."""
    fn = batched.dynamically(Gate(), **{"timeout_ms": 0.1, **options})
    for item in range(20):
        assert fn(item) == item
    assert type(fn._batcher.batcher.next_batch.policy) is Window
    assert fn.stats.learned is None


def test_a_real_lone_caller_soon_waits_no_more() -> None:
    """With all defaults and a function that takes its time, the worker sees it come back."""

    def answer(items: list[int]) -> list[int]:
        time.sleep(0.005)
        return items

    fn = batched.dynamically(answer)
    for item in range(30):
        assert fn(item) == item
    closed = fn.stats.closed
    assert closed["window"] <= 5
    assert closed["callers back"] >= 10
