"""gevent and eventlet, which have threads of their own: green ones, of which one runs until it waits.

Each test is a process of its own, as they change Python's modules for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.kit.script import ROOT

pytestmark = pytest.mark.libraries

LIBRARIES = {
    "gevent": """
        import gevent

        def patch(**parts):
            from gevent import monkey
            monkey.patch_all(**parts)

        def answers(function, items):
            greenlets = [gevent.spawn(function, item) for item in items]
            gevent.joinall(greenlets, timeout=20)
            return [greenlet.get(block=False) for greenlet in greenlets]
    """,
    "eventlet": """
        import eventlet

        def patch():
            eventlet.monkey_patch()

        def answers(function, items):
            greenlets = [eventlet.spawn(function, item) for item in items]
            with eventlet.Timeout(20):
                return [greenlet.wait() for greenlet in greenlets]
    """,
}

FUNCTION = """
import os, time
import batched

sizes = []

@batched.dynamically(batch_size=100)
def double(items):
    sizes.append(len(items))
    assert batched.current_batch().size == len(items)
    time.sleep(0.001)
    return [2 * item for item in items]
"""

SHARE = """
assert answers(double, range(100)) == [2 * item for item in range(100)]
assert len(sizes) <= 3, sizes
"""

ON_SHARED_WORKERS = FUNCTION.replace("batch_size=100", "batch_size=100, workers=batched.Workers(1)")

ORDERS = {
    "patched, then imported, shared workers": "patch()" + ON_SHARED_WORKERS,
    "asked, then patched, shared workers": ON_SHARED_WORKERS + "double.stats; patch()",
    "patched, then imported": "patch()" + FUNCTION,
    "imported, then patched": FUNCTION + "patch()",
    "asked, then patched": FUNCTION + "double.stats; double.configure(timeout_ms=4); patch()",
    # As `gunicorn --preload` does.
    "called, forked, then patched": FUNCTION
    + textwrap.dedent("""
        double(1)
        child = os.fork()
        if child:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        sizes.clear()
        patch()
    """),
}


def run_green(library: str, script: str, ahead: str = "") -> str:
    """Run `script` in a process of its own, after what it knows of `library`; return what it prints.

    What is `ahead` runs before that.
    """
    parts = map(textwrap.dedent, (ahead, LIBRARIES[library], script))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """Each library of green threads."""
    return str(request.param)


@pytest.mark.parametrize("order", ORDERS)
def test_green_threads_share_batches(library: str, order: str) -> None:
    """Wherever the program imports this package, or uses it before the first call."""
    run_green(library, ORDERS[order] + SHARE)


def test_the_package_may_be_imported_before_the_library(library: str) -> None:
    """Which puts locks of its own in the place of those that there are."""
    run_green(library, "patch()" + SHARE, ahead=FUNCTION)


def test_no_other_green_thread_is_held_up(library: str) -> None:
    """While one waits for the answer of a function that waits itself."""
    held = """
        ticks = []

        @batched.dynamically
        def hold(items):
            while len(ticks) < 5:
                time.sleep(0.001)
            return items

        def tick(item):
            ticks.append(item)
            time.sleep(0.001)
            return item

        assert answers(lambda act: act(1), [hold, *[tick] * 5]) == [1] * 6
    """
    run_green(library, ORDERS["patched, then imported"] + textwrap.dedent(held))


def test_each_way_to_call(library: str) -> None:
    """Futures, maps, streams, tasks of an event loop, room that is waited for, and `async def` functions."""
    ways = """
        import asyncio

        wanted = [2 * item for item in range(100)]
        assert answers(lambda item: double.submit(item).result(20), range(100)) == wanted
        assert list(double.map(range(100))) == wanted
        assert answers(lambda start: double([start, start + 1]), [0, 2]) == [[0, 2], [4, 6]]

        async def ask(function):
            return await asyncio.gather(*map(function, range(100)))

        assert asyncio.run(ask(double.acall)) == wanted
        assert len(sizes) < 20, sizes

        @batched.aio.dynamically
        async def on_loop(items):
            await asyncio.sleep(0.001)
            return [2 * item for item in items]

        assert asyncio.run(ask(on_loop)) == wanted

        @batched.dynamically
        async def awaited(items):
            await asyncio.sleep(0.001)
            return [2 * item for item in items]

        assert answers(awaited, range(100)) == wanted

        full = batched.dynamically(double.__wrapped__, batch_size=5, max_queue_size=10, on_full="wait")
        assert answers(lambda item: full.submit(item).result(20), range(100)) == wanted
        several = batched.dynamically(double.__wrapped__, batch_size=5, max_concurrent_batches=4)
        assert answers(several, range(100)) == wanted

        @batched.dynamically
        def pieces(items):
            for number in range(3):
                time.sleep(0.001)
                yield [(item, number) for item in items]

        found = answers(lambda item: list(pieces.stream(item)), range(20))
        assert found == [[(item, number) for number in range(3)] for item in range(20)]
    """
    run_green(library, ORDERS["patched, then imported"] + textwrap.dedent(ways))


def test_arrays(library: str) -> None:
    """Rows of several green threads share a batch."""
    arrays = """
        import time
        import numpy
        import batched.inference

        sizes = []

        @batched.inference.dynamically(batch_size=100)
        def double(features):
            sizes.append(len(features["x"]))
            time.sleep(0.001)
            return 2 * features["x"]

        found = answers(lambda item: double({"x": numpy.full((1, 3), item)}), range(100))
        assert [row.tolist() for row in found] == [[[2 * item] * 3] for item in range(100)]
        assert len(sizes) <= 3, sizes
    """
    run_green(library, "patch()\n" + textwrap.dedent(arrays))


def test_deadlines(library: str) -> None:
    """Of calls and of futures, all at once, while the function is busy; then it goes on."""
    deadlines = """
        busy = True

        @batched.dynamically(batch_size=100)
        def hold(items):
            started.append(items)
            while busy:
                time.sleep(0.001)
            return items

        started = []
        first = hold.submit(0)
        while not started:
            time.sleep(0.001)

        def late(way):
            try:
                return way(1)
            except TimeoutError:
                return "late"

        hurried = hold.options(deadline_ms=20)
        ways = [hurried] * 50 + [lambda item: hurried.submit(item).result(20)] * 50
        assert answers(late, ways) == ["late"] * 100
        busy = False
        assert first.result(20) == 0
        assert hold(2) == 2
        hold.shutdown()
        try:
            hold(3)
        except batched.ClosedError:
            print("closed")
    """
    assert run_green(library, ORDERS["patched, then imported"] + textwrap.dedent(deadlines)) == "closed\n"


@pytest.mark.parametrize("order", ORDERS)
def test_the_process_ends_by_itself(library: str, order: str) -> None:
    """With a worker that sleeps, and a batch that runs, which is waited for."""
    end = """
        assert double(1) == 2

        @batched.dynamically
        def slow(items):
            time.sleep(0.05)
            print("ended", flush=True)
            return items

        slow.submit(1)
        time.sleep(0.02)
    """
    assert run_green(library, ORDERS[order] + textwrap.dedent(end)) == "ended\n"


def test_a_green_thread_that_is_killed_leaves_its_call() -> None:
    """So does one with a timeout; others are answered."""
    killed = """
        busy = True

        @batched.dynamically(batch_size=1, timeout_ms=0)
        def hold(items):
            while busy:
                time.sleep(0.001)
            return items

        first = gevent.spawn(hold, 1)
        gevent.sleep(0.01)
        second = gevent.spawn(hold, 2)
        gevent.sleep(0.01)
        second.kill(timeout=20)
        with gevent.Timeout(0.01, False):
            hold(3)
        busy = False
        assert hold(4) == 4
        assert first.get(timeout=20) == 1
        assert hold.stats.total_cancelled == 2, hold.stats
    """
    run_green("gevent", ORDERS["patched, then imported"] + textwrap.dedent(killed))


def test_calls_from_a_pool_of_true_threads() -> None:
    """They share the worker with green threads."""
    pool = """
        assert double(1) == 2
        pool = gevent.get_hub().threadpool
        there = [pool.spawn(double, item) for item in range(8)]
        assert answers(double, range(100)) == [2 * item for item in range(100)]
        assert [each.get(timeout=20) for each in there] == [2 * item for item in range(8)]
    """
    run_green("gevent", ORDERS["patched, then imported"] + textwrap.dedent(pool))


def test_threads_that_are_not_patched() -> None:
    """A call holds up the other green threads, so that they share no batch; all are answered."""
    calls = """
        patch(thread=False)
        assert answers(double, range(20)) == [2 * item for item in range(20)]
        assert answers(lambda item: double.submit(item).result(20), range(20)) == [
            2 * item for item in range(20)
        ]
        try:
            double.options(deadline_ms=20)(1)
        except TimeoutError:
            pass
    """
    run_green("gevent", FUNCTION + textwrap.dedent(calls))
