"""The interpreter exits in any state; each test in a process of its own."""

from __future__ import annotations

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.script import run_script

EXITS = {
    "idle": "double(1)",
    "never used": "",
    "queue full": "futures = [slow.submit(item) for item in range(10_000)]; entered.wait(10)",
    "function running": "slow.submit(1); entered.wait(10)",
    "function printing": """
        @batched.dynamically(timeout_ms=0)
        def chatty(items):
            entered.set()
            for _ in range(50):
                print("still here", flush=True)
                time.sleep(0.001)
            return items
        chatty.submit(1); entered.wait(10)
    """,
    "futures that are not waited for": "[double.submit(item) for item in range(1000)]",
    "in a window": """
        @batched.dynamically(timeout_ms=600_000)
        def patient(items):
            return items
        patient.submit(1)
    """,
    "daemon callers": """
        def call():
            while True:
                slow(1)
        for _ in range(4):
            threading.Thread(target=call, daemon=True).start()
        entered.wait(10)
    """,
    "a daemon thread's event loop": """
        async def call():
            await asyncio.gather(*(slow.acall(item) for item in range(100)))
        threading.Thread(target=asyncio.run, args=[call()], daemon=True).start()
        entered.wait(10)
    """,
    "an async function": """
        @batched.dynamically(timeout_ms=0)
        async def later(items):
            await asyncio.sleep(0)
            return items
        later(1)
    """,
    "a batcher behind a batcher": """
        @batched.dynamically(timeout_ms=0)
        def outer(items):
            return slow(items)
        outer.submit([1, 2, 3]); entered.wait(10)
    """,
}


@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits_in_any_state(state: str) -> None:
    """It neither hangs nor prints."""
    run_script(EXITS[state])


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits_in_any_state_200_times(state: str) -> None:
    """In each state, for what happens rarely."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: run_script(EXITS[state]), range(200)))


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="CPython starts no thread after the end of the main one"
)
def test_a_running_batch_is_finished_at_exit_and_the_rest_cancelled() -> None:
    """As ThreadPoolExecutor does; non-daemon threads may call until their own end."""
    output = run_script(
        """
        def last():
            threading.main_thread().join()
            print("thread:", double(4))
            futures = [slow.submit(item) for item in range(6)]
            entered.wait(10)
            futures[0].add_done_callback(lambda future: print("running:", future.result()))
            futures[5].add_done_callback(lambda future: print("queued:", future.cancelled()))
        threading.Thread(target=last).start()
        """
    )
    assert sorted(output.splitlines()) == ["queued: True", "running: 0", "thread: 8"]


def test_calls_after_the_exit_has_begun_are_refused() -> None:
    """An exit handler that calls gets a ClosedError instead of waiting for ever."""
    output = run_script(
        """
        import atexit
        def handler():
            try:
                double(1)
            except batched.ClosedError as error:
                print(error)
        atexit.unregister(batched._drivers.fork_and_exit.at_exit)
        atexit.register(handler)
        atexit.register(batched._drivers.fork_and_exit.at_exit)
        double(1)
        """
    )
    assert output == "double was shut down and takes no more calls\n"


FINALIZERS = {
    "a call": "call(1)",
    "a future": "call.submit(1).result()",
    "a map": "list(call.map([1, 2]))",
    "a stream": "list(endless.stream(1))",
    "stages": "staged(1)",
    "shared workers": "shared(1)",
}


@pytest.mark.parametrize("asks", FINALIZERS)
def test_a_first_call_from_a_finalizer_at_the_end_does_not_keep_the_interpreter(asks: str) -> None:
    """No thread can start by then, so the call is refused, as each is once the exit has begun."""
    output = run_script(
        f"""
        call = batched.dynamically(double.__wrapped__)
        staged = batched.dynamically(double.__wrapped__, prepare=lambda items: items)
        shared = batched.dynamically(double.__wrapped__, workers=batched.Workers(2))
        @batched.dynamically
        def endless(items):
            yield items
        class Last:
            def __del__(self, call=call, staged=staged, shared=shared, endless=endless, print=print):
                try:
                    {FINALIZERS[asks]}
                except Exception:
                    print("refused", end="", flush=True)
        last = Last()
        """,
        timeout=20,
    )
    assert output == "refused"


SERVED = """
entered = threading.Event()

@batched.dynamically(batch_size=2, timeout_ms=0)
def endless(items):
    try:
        while True:
            entered.set()
            time.sleep(0.001)
            yield items
    finally:
        print("closed", flush=True)
"""


STREAM_EXITS = {
    "a stream that is kept": "stream = endless.stream(1); next(stream)",
    "a stream that is dropped": "next(endless.stream(1))",
    "a stream that waits": "streams = [endless.stream(item) for item in range(9)]; next(streams[0])",
    "a daemon consumer": """
        def consume():
            for _ in endless.stream(1):
                pass
        threading.Thread(target=consume, daemon=True).start(); entered.wait(10)
    """,
    "a daemon loop": """
        async def consume():
            async for _ in endless.astream(1):
                pass
        threading.Thread(target=asyncio.run, args=[consume()], daemon=True).start(); entered.wait(10)
    """,
    "a future": "future = endless.submit(1); entered.wait(10)",
    "a daemon thread": "threading.Thread(target=endless, args=[1], daemon=True).start(); entered.wait(10)",
    "a task of a daemon loop": """
        async def call():
            await endless.acall(1)
        threading.Thread(target=asyncio.run, args=[call()], daemon=True).start(); entered.wait(10)
    """,
    "an asynchronous generator": """
        @batched.dynamically(timeout_ms=0)
        async def endless(items):
            try:
                while True:
                    await asyncio.sleep(0)
                    yield items
            finally:
                print("closed", flush=True)
        stream = endless.stream(1); next(stream)
    """,
}


@pytest.mark.parametrize("state", STREAM_EXITS)
def test_a_stream_without_end_does_not_keep_the_interpreter(state: str) -> None:
    """Its generator is closed, and nothing else printed."""
    assert run_script(SERVED + textwrap.dedent(STREAM_EXITS[state])) == "closed\n"


SERVER_EXITS = {
    "waiting for room": """
        full = batched.dynamically(slow.__wrapped__, batch_size=1, max_queue_size=1, on_full="wait")
        for _ in range(4):
            threading.Thread(target=full, args=[1], daemon=True).start()
        entered.wait(10)
    """,
    "several workers": """
        several = batched.dynamically(slow.__wrapped__, batch_size=1, timeout_ms=0, max_concurrent_batches=3)
        futures = [several.submit(item) for item in range(100)]; entered.wait(10)
    """,
    "groups and a cache": """
        known = batched.dynamically(slow.__wrapped__, timeout_ms=0, cache={}, group_by=lambda item: item % 3)
        futures = [known.submit([item, item + 1]) for item in range(100)]; entered.wait(10)
    """,
    "running again": """
        def fails(items):
            entered.set()
            time.sleep(0.01)
            raise ValueError
        isolated = batched.dynamically(fails, timeout_ms=0, isolate_errors=True)
        future = isolated.submit(list(range(8))); entered.wait(10)
    """,
}


@pytest.mark.parametrize("state", SERVER_EXITS)
def test_the_interpreter_exits_whatever_its_callers_wait_for(state: str) -> None:
    """It neither hangs nor prints."""
    run_script(SERVER_EXITS[state])
