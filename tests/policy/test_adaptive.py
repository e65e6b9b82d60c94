"""The learned window: what it waits for, and how long."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._policy.adaptive import AdaptiveWindow
from batched._policy.cohorts import Cohorts
from batched._policy.window import Window
from tests.kit.server import EACH_S, FIXED_S, TIMEOUT_S, Server, adaptive, crowd, soon


@pytest.mark.parametrize("think_s", [0.0, 20e-6, 0.001, 0.02, 3.0])
def test_a_lone_caller_soon_waits_no_more(think_s: float) -> None:
    """It waits in its first five calls at most, whatever it does between them."""
    server = adaptive()
    server.call(0, lambda: think_s)
    server.run(200)
    assert server.held[0] == pytest.approx(TIMEOUT_S)
    assert not any(server.held[5:])


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


def test_the_service_time_may_drift() -> None:
    """The function becomes five times as slow, or as fast, and the crowd stays together."""
    server = adaptive(batch_size=20)
    crowd(server, 20)
    server.run(100)
    for slow in (5.0, 1.0, 0.2, 1.0):
        server.slow = slow
        server.run(60)
        assert server.batches[-20:] == [20] * 20
        learned = server.driver.stats(server.now).learned
        assert learned is not None
        assert learned.capacity == pytest.approx(20 / (slow * (FIXED_S + 20 * EACH_S)), rel=0.1)


def test_where_a_wait_saves_nothing_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a few microseconds: no caller can be back before it pays to run again."""
    server = adaptive()
    server.slow = 1e-3
    crowd(server, 20)
    server.run(100)
    for event in ("let_go", "start_at", "done"):
        monkeypatch.delattr(AdaptiveWindow, event)
        monkeypatch.delattr(Window, event, raising=False)
    server.run(100)
    assert server.held[-100:] == [0.0] * 100
    learned = server.driver.stats(server.now).learned
    assert learned is not None
    assert learned.batch_ms == pytest.approx(1000 * FIXED_S * server.slow, rel=0.1)


def test_a_fast_function_that_becomes_slow_is_learned_anew() -> None:
    """And rests again when it is as fast as before; a slow batch of several makes it look, and no more."""
    server = adaptive()
    server.slow = 1e-3
    crowd(server, 20)
    server.run(100)
    server.slow = 1.0
    server.run(2)
    assert not server.patience.is_suspended
    server.slow = 1e-3
    server.run(100)
    assert server.patience.is_suspended
    server.slow = 1.0
    server.run(300)
    assert server.batches[-20:] == [20] * 20
    server.slow = 1e-3
    server.run(300)
    assert server.patience.is_suspended
    assert server.held[-100:] == [0.0] * 100


def test_a_slow_batch_of_a_call_that_is_alone_does_not_disturb_its_rest() -> None:
    """As after a while in which nothing ran: there is no company that a wait could gain."""
    server = adaptive()
    server.slow = 1e-3
    server.call(0, soon)
    server.run(100)
    assert server.patience.is_suspended
    for _ in range(10):
        server.slow = 1.0
        server.run(1)
        assert server.patience.is_suspended
        server.slow = 1e-3
        server.run(5)


@pytest.mark.parametrize("callers", [2, 20])
def test_it_rests_while_calls_come_one_at_a_time(callers: int) -> None:
    """Whatever the function takes. Once others come, they share batches as if it had never rested."""
    server = adaptive()
    server.call(0, soon)
    server.run(100)
    assert server.patience.is_suspended
    for _ in range(callers - 1):
        server.call(server.now + 0.001, soon)
    server.run(100)
    assert not server.patience.is_suspended
    assert server.batches[-20:] == [callers] * 20


def test_what_batches_take_is_learned_while_it_rests() -> None:
    """In samples: the figures follow a function that becomes slower bit by bit."""
    server = adaptive(batch_size=1)
    server.call(0, soon)
    server.run(100)
    for _ in range(40):
        server.slow *= 1.02
        server.run(20)
    assert server.patience.is_suspended
    learned = server.driver.stats(server.now).learned
    assert learned is not None
    assert learned.batch_ms is None  # there is only one size
    assert learned.capacity == pytest.approx(1 / (server.slow * (FIXED_S + EACH_S)), rel=0.15)


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
        patience.came += [now + skew] * size
        start = patience.start_at(now - seconds, size, now)
        assert start <= now + TIMEOUT_S
        assert patience.awaited >= 1
        patience.done(size, 1, answered, now - abs(skew), now, skew > 0)
    learned = patience.learned()
    assert learned is None or learned.capacity is None or learned.capacity > 0


def test_a_wake_up_that_is_always_late_is_expected_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was late once is not."""
    expected_s: list[float] = []
    decide = Cohorts.due

    def due(cohorts: Cohorts, *situation: float) -> float:
        *_, late_s = situation
        expected_s.append(late_s)
        return decide(cohorts, *situation)

    monkeypatch.setattr(Cohorts, "due", due)
    server = adaptive()
    random = Random(7)
    for _ in range(10):
        server.call(0, lambda: 5e-5)
        server.call(0, lambda: random.expovariate(1 / 0.05))
    server.run(50)
    before = expected_s[-1]
    delay = server.driver.delay
    server.driver.delay = lambda now: (d := delay(now)) and d + 0.0005  # type: ignore[method-assign]
    server.run(100)
    assert before < 0.00015
    assert 0.0003 < expected_s[-1] < 0.0007


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
    assert "4 ms per batch + 0.1 ms per item; at most 4,4" in str(stats)
    assert set(stats.closed) <= {"callers back", "no gain", "waited", "trial", "window"}


@pytest.mark.parametrize(
    ("sizes", "differ"),
    [([1], False), ([20, 21], False), ([*[7] * 200, 1], False), ([1, 2], True), ([10, 40], True)],
    ids=["one", "about one", "rarely another", "one or two", "small and large"],
)
def test_it_is_told_whether_sizes_tell_what_an_item_adds(sizes: list[int], differ: bool) -> None:
    """Else the costs keep the proportion that they were taken to have."""
    window = AdaptiveWindow(TIMEOUT_S, 64)
    now = 0.0
    for size in (sizes * 20)[:400]:
        window.came.append(now)
        started, now = now, now + FIXED_S + EACH_S * size
        window.done(size, size, size, started, now, True)
        now += 0.001
    learned = window.learned()
    assert learned is not None
    assert learned.sizes_differ == differ
    if differ:
        assert learned.batch_ms == pytest.approx(FIXED_S * 1000, rel=0.05)


def test_where_no_timeout_is_set_a_wait_is_as_long_as_a_batch_costs_at_most() -> None:
    """Callers that come back over most of that share batches; a timeout that is set stays a hard bound."""
    means = {}
    for timeout_s in (None, TIMEOUT_S):
        server = adaptive(timeout_s=timeout_s)
        server.slow = 5.0  # 20 ms for a batch
        random = Random(9)
        for _ in range(20):
            server.call(0, lambda random=random: random.uniform(0.001, 0.015))
        server.run(300)
        means[timeout_s] = sum(server.latencies[1000:]) / len(server.latencies[1000:])
        longest = max(server.held[20:])
        assert longest <= (timeout_s or 5.0 * FIXED_S * 1.1) + 1e-9
    assert means[None] < 0.95 * means[TIMEOUT_S]


def test_with_a_timeout_that_is_set_anew_it_goes_on() -> None:
    """Also with none, again."""
    window = AdaptiveWindow(None, 32)
    assert (window.is_auto, window.timeout_s) == (True, TIMEOUT_S)
    window.configure(0.002, 16)
    assert (window.is_auto, window.timeout_s) == (False, 0.002)
    window.configure(None, 16)
    assert (window.is_auto, window.timeout_s) == (True, TIMEOUT_S)
