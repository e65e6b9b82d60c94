"""Children of a fork start afresh, and their parents go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.kit.script import ROOT, run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_a_fork_starts_afresh_while_batches_run() -> None:
    """While batches run, and others wait for a turn."""
    assert (
        run_script(
            """
            gate = threading.Event()
            inside = threading.Semaphore(0)

            @batched.dynamically(batch_size=1, timeout_ms=0, max_concurrent_batches=3)
            def held(items):
                inside.release()
                gate.wait(20)
                return items

            futures = [held.submit(item) for item in range(5)]
            for _ in range(3):
                assert inside.acquire(timeout=20)
            child = os.fork()
            if not child:
                gate.set()
                status = held([1, 2, 3]) != [1, 2, 3] or held.stats.total_accepted != 3
                os._exit(int(status))
            assert os.waitpid(child, 0)[1] == 0
            gate.set()
            print([future.result(20) for future in futures])
            """
        )
        == "[0, 1, 2, 3, 4]\n"
    )


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_fork_works_for_functions_on_event_loops() -> None:
    """Also from inside a loop with calls pending: those are the parent's."""
    script = """if True:
        import asyncio, os, sys, threading
        from batched import aio

        async def echo(items): return items
        def plain(items): return items
        functions = [aio.dynamically(function, timeout_ms=0) for function in (echo, plain)]
        patient = aio.dynamically(echo, timeout_ms=600_000)

        async def main():
            waiting = asyncio.create_task(patient(1))
            for fn in functions:
                assert await fn(1) == 1
            pid = os.fork()
            if pid == 0:  # in a thread of its own: here, no task may go on and no other loop may run
                thread = threading.Thread(target=child)
                thread.start()
                thread.join(20)
                os._exit(int(not passed))
            assert os.waitpid(pid, 0)[1] == 0
            assert [await fn(2) for fn in functions] == [2, 2]
            await patient.aclose()
            assert await waiting == 1

        def child():
            for fn in functions:
                assert fn.stats.total_accepted == 0
                assert asyncio.new_event_loop().run_until_complete(fn([1, 2])) == [1, 2]
            assert patient.stats.queue_size == 0
            passed.append(True)

        passed = []
        asyncio.run(main())
        print("ok")
    """
    # From Python 3.12 on, `os.fork` warns where threads run.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("state", ["idle", "busy", "waiting", "async"])
def test_a_fork_works_in_the_child_and_the_parent(state: str) -> None:
    """The child starts afresh; what the parent had queued is the parent's alone."""
    run_script(
        f"""
        state = {state!r}
        model = Model(3)
        assert (double(1), model.run(1)) == (2, 3)

        @batched.dynamically(timeout_ms=0)
        async def later(items):
            await asyncio.sleep(0)
            return items

        futures = []
        if state == "busy":
            futures = [slow.submit(item) for item in range(20)]
            entered.wait(10)
        if state == "waiting":
            @batched.dynamically(timeout_ms=600_000)
            def slow(items):
                return items
            futures = [slow.submit(1)]
        if state == "async":
            assert later(1) == 1
        pid = os.fork()
        if pid == 0:
            assert (double(2), model.run([1, 2]), Model(5).run(1)) == (4, [3, 6], 5)
            assert double.stats.total_accepted == 1
            assert slow.stats.total_accepted == 0
            assert asyncio.run(double.acall(3)) == 6
            assert later([1, 2]) == [1, 2]
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        assert (double(2), model.run(2), later(3)) == (4, 6, 3)
        if state == "waiting":
            slow.shutdown()
        expected = {{"waiting": [1], "busy": list(range(20))}}.get(state, [])
        assert [future.result(10) for future in futures] == expected
        """
    )


def test_a_child_forked_under_load_works() -> None:
    """Whatever locks other threads held at that moment."""
    run_script(
        """
        stop = threading.Event()
        def load():
            while not stop.is_set():
                double([1, 2, 3])
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads: thread.start()
        for _ in range(50):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if double(2) == 4 and Model(2).run(1) == 2 else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join(10)
        """
    )


def test_a_fork_works_with_everything_in_use() -> None:
    """In the child: inherited calls may be dropped, cancelled and read, and the batcher serves new ones."""
    output = run_script(
        """
        gate = threading.Event()
        inside = threading.Semaphore(0)

        def held(items):
            inside.release()
            gate.wait(20)
            return items

        def held_stream(items):
            inside.release()
            gate.wait(20)
            yield items

        served = batched.dynamically(
            held, batch_size=2, timeout_ms=0, cache={}, group_by=lambda item: item % 2,
            max_queue_size=8, on_full="wait",
        )
        plain = batched.dynamically(held, batch_size=1, timeout_ms=0)
        stream = batched.dynamically(held_stream, batch_size=1, timeout_ms=0)
        futures = [served.submit([1, 2, 3]), served.submit([2, 4]), plain.submit(1), plain.submit(2)]
        streams = [stream.stream(1), stream.stream(2), stream.stream(3)]
        for _ in range(3):
            assert inside.acquire(timeout=20)
        child = os.fork()
        if not child:
            for future in futures:
                future.cancel()
            try:
                next(streams[0])
            except batched.ClosedError as error:
                print(error, flush=True)
            del streams[1]
            gate.set()
            done = (served([1, 2, 5, 5]), plain(1), list(stream.stream(4)))
            stats = [fn.stats for fn in (served, plain, stream)]
            print(done, [(s.queue_size, s.running_items, s.total_processed) for s in stats], flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        gate.set()
        print([future.result(20) for future in futures], [list(stream) for stream in streams])
        """
    )
    assert output.splitlines() == [
        "held_stream: this call belongs to the parent process",
        "([1, 2, 5, 5], 1, [4]) [(0, 0, 3), (0, 0, 1), (0, 0, 1)]",
        "[[1, 2, 3], [2, 4], 1, 2] [[1], [2], [3]]",
    ]


def test_a_fork_while_the_cache_is_asked() -> None:
    """Its lock belongs to a thread that the child has not."""
    assert (
        run_script(
            """
            asked = threading.Event()
            go_on = threading.Event()

            class Slow(dict):
                def __getitem__(self, key):
                    if key == "slow" and not go_on.is_set():
                        asked.set()
                        go_on.wait(20)
                    return super().__getitem__(key)

            fn = batched.dynamically(lambda items: items, timeout_ms=0, cache=Slow())
            thread = threading.Thread(target=fn, args=["slow"])
            thread.start()
            assert asked.wait(20)
            child = os.fork()
            if not child:
                os._exit(int(fn("quick") != "quick"))
            print(os.waitpid(child, 0)[1])
            go_on.set()
            thread.join(20)
            """
        )
        == "0\n"
    )


@pytest.mark.parametrize(
    ("guard", "call"),
    [
        ("vars(fn._driver)['request_caches'].guard", "fn.options(request_cache={})(2)"),
        ("fn._driver.warn_on_loop.guard", "asyncio.run(blocks())"),
        ("batched._api.deadline._using", "in_block()"),
        ("at_once._changing", "inline()"),
        ("at_once._ends", "inline()"),
        ("at_once._making_state", "inline()"),
    ],
)
def test_a_fork_while_another_thread_has_a_lock(guard: str, call: str) -> None:
    """Of the caches of requests, of the warning of a call that blocks a loop, of deadlines, or of tests."""
    assert (
        run_script(
            f"""
            import asyncio, warnings

            from batched.testing import at_once

            async def blocks():
                return fn(2)

            def in_block():
                with batched.deadline(60_000):
                    return fn(2)

            def inline():
                with at_once.inline():
                    return pooled(2)

            warnings.simplefilter("ignore")
            pooled = batched.dynamically(lambda items: items, workers=batched.Workers())
            fn = batched.dynamically(lambda items: items, timeout_ms=0)
            assert fn.options(request_cache={{}})(1) == 1
            lock = {guard}.lock
            held = threading.Event()
            go_on = threading.Event()

            def hold():
                with lock:
                    held.set()
                    go_on.wait(20)

            thread = threading.Thread(target=hold)
            thread.start()
            assert held.wait(20)
            child = os.fork()
            if not child:
                __import__("signal").alarm(10)
                os._exit(int({call} != 2))
            print(os.waitpid(child, 0)[1])
            go_on.set()
            thread.join(20)
            """
        )
        == "0\n"
    )
