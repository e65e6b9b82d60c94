"""Starting, forking, copying, dying: each in a process of its own, with a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROLOGUE = """
import asyncio, copy, gc, os, pickle, sys, threading, time
import batched

@batched.dynamically(timeout_ms=0)
def double(items):
    return [2 * item for item in items]

class Model:
    def __init__(self, factor):
        self.factor = factor
    @batched.dynamically(timeout_ms=0)
    def run(self, items):
        return [self.factor * item for item in items]

def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batched")]

entered = threading.Event()

@batched.dynamically(batch_size=2, timeout_ms=0)
def slow(items):
    entered.set()
    time.sleep(0.05)
    return items
"""


def run(script: str, *, timeout: float = 60.0, cwd: Path = ROOT) -> str:
    """Run `script` after the prologue; it must end by itself, well, and silently on stderr."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROLOGUE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


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
    "futures nobody waits for": "[double.submit(item) for item in range(1000)]",
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
    for _ in range(2):
        run(EXITS[state])


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits_in_any_state_200_times(state: str) -> None:
    """As above, for what happens rarely."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: run(EXITS[state]), range(200)))


def test_a_running_batch_is_finished_at_exit_and_the_rest_cancelled() -> None:
    """As ThreadPoolExecutor does; non-daemon threads may call until their own end."""
    output = run(
        """
        def last():
            time.sleep(0.1)
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
    output = run(
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
    assert output == "double was shut down\n"


def test_dropped_instances_leave_no_thread_and_no_memory() -> None:
    """Ten thousand of them, created, used and dropped."""
    run(
        """
        def use(count):
            for factor in range(count):
                assert Model(factor).run(2) == 2 * factor
        use(500)
        for _ in range(100):
            if not workers(): break
            time.sleep(0.05)
        gc.collect()
        before = sys.getallocatedblocks()
        use(10_000)
        for _ in range(100):
            if not workers(): break
            time.sleep(0.05)
        assert not workers(), len(workers())
        gc.collect()
        grown = sys.getallocatedblocks() - before
        assert grown < 2_000, grown  # less than one of 10,000 dropped ones could leave
        assert not Model.__dict__["run"]._shared.binding._made
        assert not Model.__dict__["run"]._shared.binding.views
        assert len(batched._drivers.fork_and_exit._live) <= 2
        """
    )


def test_an_instance_in_a_cycle_is_collected_too() -> None:
    """By the garbage collector, wherever it runs, also in a worker."""
    run(
        """
        for factor in range(200):
            model = Model(factor)
            model.me = model
            assert model.run(1) == factor
        del model
        gc.collect()
        for _ in range(100):
            if not workers(): break
            time.sleep(0.05)
        assert not workers()
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("state", ["idle", "busy", "waiting", "async"])
def test_a_fork_works_in_the_child_and_the_parent(state: str) -> None:
    """The child starts afresh; what the parent had queued is the parent's alone."""
    run(
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
    run(
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


MODULE = """
import batched

@batched.dynamically(timeout_ms=0)
def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]

class Model:
    def __init__(self, factor):
        self.factor = factor
        self.own = batched.dynamically(self._own, timeout_ms=0)

    @batched.dynamically(batch_size=7, timeout_ms=0)
    def run(self, items):
        return [self.factor * item for item in items]

    @batched.dynamically(timeout_ms=0)
    @classmethod
    def of_class(cls, items):
        return [cls.__name__ for _ in items]

    def _own(self, items):
        return [self.factor + item for item in items]
"""

COPIES = """
def check(copied):
    if used:
        assert (double(1), model.run(1), model.own(1)) == (2, 3, 4)
    again, twin, bound, of_class = copied((double, model, model.run, Model.of_class))
    assert (again(2), again([1, 2]), twin.run(2), twin.own(2), bound(2)) == (4, [2, 4], 6, 5, 6)
    assert of_class(1) == "Model"
    assert (again.__name__, again.__doc__) == ("double", double.__doc__)
    assert "batch_size=7" in repr(twin.run)
    assert twin is not model and twin.run.stats.total_processed >= 1
    accepted = model.run.stats.total_accepted
    twin.run(1)
    assert model.run.stats.total_accepted == accepted, "the copy shares the original's queue"
    if again is not double:
        assert again.stats.total_accepted == 3

for used in (False, True):
    for how in HOW:
        model = Model(3)
        check(how)
    for protocol in (4, 5):
        view = double.options(deadline_ms=50_000)
        assert pickle.loads(DUMPS(view, protocol))(3) == 6
"""


@pytest.mark.parametrize("place", ["module", "main"])
def test_copies_and_pickles_work_and_have_their_own_queue(place: str, tmp_path: Path) -> None:
    """`copy`, `pickle` and `cloudpickle`, before and after use, in a module and in `__main__`."""
    (tmp_path / "its_module.py").write_text(MODULE)
    source = "from its_module import *" if place == "module" else MODULE
    how = """
import cloudpickle, copy, pickle
HOW = [
    lambda x: tuple(copy.copy(y) for y in x),
    copy.deepcopy,
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: pickle.loads(cloudpickle.dumps(x)),
]
DUMPS = pickle.dumps
"""
    script = tmp_path / "script.py"
    script.write_text(source + how + COPIES)
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_what_cloudpickle_took_from_main_works_in_another_process(tmp_path: Path) -> None:
    """Where neither the script nor its module can be imported."""
    script = tmp_path / "script.py"
    script.write_text(
        MODULE
        + """
import cloudpickle, sys
model = Model(3)
assert model.run(1) == 3
sys.stdout.buffer.write(cloudpickle.dumps((double, model, Model)))
"""
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dumped = subprocess.run(
        [sys.executable, str(script)], capture_output=True, timeout=60, check=True, env=environment
    )
    loaded = """
import pickle, sys
double, model, Model = pickle.load(sys.stdin.buffer)
assert (double(2), model.run(2), model.own(2), Model(5).run(1)) == (4, 6, 5, 5)
"""
    subprocess.run(
        [sys.executable, "-c", loaded], input=dumped.stdout, timeout=60, check=True, env=environment
    )


def test_a_spawned_process_gets_a_working_copy(tmp_path: Path) -> None:
    """As `multiprocessing` sends its target and arguments."""
    (tmp_path / "its_module.py").write_text(MODULE)
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing
from its_module import double, Model

def work(fn, model):
    assert (fn(2), model.run(2)) == (4, 6)

if __name__ == "__main__":
    model = Model(3)
    model.run(1)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(double, model))
    process.start()
    process.join(30)
    assert process.exitcode == 0
"""
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, str(script)], timeout=60, check=True, env=environment)


def test_checks_do_not_depend_on_assert() -> None:
    """Everything is refused the same under `python -O`."""
    script = """
import batched
fn = batched.dynamically(lambda xs: xs[1:], timeout_ms=0, name="fn")
for call in [lambda: fn([1, 2]), lambda: batched.dynamically(len, batch_size=0)]:
    try:
        call()
    except ValueError as caught:
        print(caught)
"""
    result = subprocess.run(
        [sys.executable, "-O", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert result.stdout.splitlines() == [
        "fn returned 1 results for a batch of 2 items",
        "batch_size must be at least 1, got 0",
    ]


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
    assert run(SERVED + textwrap.dedent(STREAM_EXITS[state])) == "closed\n"


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
    run(SERVER_EXITS[state])


def test_a_fork_works_with_everything_in_use() -> None:
    """In the child: inherited calls may be dropped, cancelled and read, and the batcher serves new ones."""
    output = run(
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
        run(
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


def test_everything_survives_pickle_and_copy() -> None:
    """Functions with callbacks, caches, streams; each copy has a batcher of its own."""
    run(
        """
        import cloudpickle
        served = batched.dynamically(
            double.__wrapped__, timeout_ms=0, cache={}, cache_key=abs, group_by=abs, max_queue_size=9,
            on_full="wait", max_concurrent_batches=2, isolate_errors=True, name="served",
        )
        class Model:
            @batched.dynamically(timeout_ms=0)
            def words(self, texts):
                rows = [text.split() for text in texts]
                for step in range(max(map(len, rows))):
                    yield [row[step] if step < len(row) else batched.DONE for row in rows]
            @batched.dynamically(timeout_ms=0)
            def add(self, xs, ys=None):
                return [x + y for x, y in zip(xs, ys)]
        model = Model()
        assert served(2) == 4
        for clone in (copy.copy(served), cloudpickle.loads(cloudpickle.dumps(served))):
            assert clone([1, 2]) == [2, 4]
            clone.shutdown()
            assert served(3) == 6
        by_value = cloudpickle.loads(cloudpickle.dumps(model))
        for other in (copy.deepcopy(model), by_value, pickle.loads(pickle.dumps(model))):
            assert list(other.words.stream("a b")) == ["a", "b"]
            assert other.add([1], [2]) == [3]
        done = pickle.loads(pickle.dumps(batched.DONE))
        assert done is batched.DONE and copy.deepcopy(done) is done and repr(done) == "batched.DONE"
        """
    )
