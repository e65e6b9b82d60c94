"""Batched functions in the processes of a real, local Ray: replicas, actors, tasks, and the examples."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate, until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(280),  # the first test starts Ray, and the examples start others
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's, of what it imports
]

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
STARTUP_S = 200.0  # 30 to 60 are usual


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What Ray's processes are to know, a folder for their files among it."""
    folder = tempfile.mkdtemp(prefix="ray")  # not pytest's: a socket's path must be short
    yield {
        "PYTHONPATH": str(ROOT),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "disabled",  # else it writes a token into the home folder
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(session: int) -> list[psutil.Process]:
    """Return the processes of a session, whose parents may have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    """A local Ray with Serve, and where its HTTP is; its end leaves no process behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        import ray
        from ray import serve

        address = port()
        try:
            ray.init(
                "local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=100 * 2**20,
            )
            serve.start(http_options={"port": address}, logging_config={"log_level": "ERROR"})
            yield f"http://127.0.0.1:{address}"
        finally:
            started = psutil.Process().children(recursive=True)
            serve.shutdown()
            ray.shutdown()
        assert started
        assert not psutil.wait_procs(started, timeout=PATIENCE_S)[1]


# So that a test knows who is in a batch.
WHEN_FULL: Any = {"timeout_ms": 1000 * PATIENCE_S, "adaptive": False}


class Probe:
    """What a replica holds: a batched method behind a gate, another that fails, and one that streams."""

    def __init__(self) -> None:
        self.gate = Gate(lambda items: [2 * item for item in items], shut=True)
        self.over = threading.Event()
        self.sizes: list[int] = []

    @batched.dynamically(batch_size=4, max_queue_size=9)
    def double(self, items: list[int]) -> list[int]:
        return self.gate(items)

    @batched.dynamically(batch_size=4, isolate_errors=True, **WHEN_FULL)
    def invert(self, items: list[int]) -> list[float]:
        self.sizes.append(len(items))
        return [1 / item for item in items]

    @batched.dynamically(timeout_ms=0)
    def count(self, starts: list[int]) -> Iterator[list[str]]:
        """Count, for ever if nobody leaves or finishes."""
        step = 0
        while not self.over.wait(0.01):
            yield [f"{start + step} of {len(starts)}\n" for start in starts]
            step += 1

    @batched.dynamically(batch_size=2, **WHEN_FULL)
    def count_both(self, starts: list[int]) -> Iterator[list[str]]:
        """The same for two at once."""
        yield from self.count.__wrapped__(starts)

    async def ask_double(self, item: int, deadline_ms: float | None = None) -> int:
        return await self.double.options(deadline_ms=deadline_ms).acall(item)

    async def ask_invert(self, item: int) -> float:
        return await self.invert.acall(item)

    async def ask_count(self, start: int, name: str = "count") -> Any:
        async for line in getattr(self, name).astream(start):
            yield line

    async def entered(self) -> None:
        await asyncio.to_thread(self.gate.wait_for_batch)

    async def open(self) -> None:
        self.gate.open()

    async def open_once(self, path: Path) -> None:
        """Do so once that file is there."""
        await asyncio.to_thread(until, path.exists)
        self.gate.open()

    async def batches(self) -> list[list[int]]:
        return self.gate.batches

    async def sizes_of_invert(self) -> list[int]:
        return self.sizes

    async def finish(self) -> None:
        self.over.set()

    async def stats(self, name: str) -> Any:
        return getattr(self, name).stats

    async def pid(self) -> int:
        return os.getpid()

    async def __call__(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        if "start" in request.query_params:
            start, name = int(request.query_params["start"]), request.query_params.get("name", "count")
            return StreamingResponse(self.ask_count(start, name), media_type="text/plain")
        return await self.invert.acall(int(request.query_params["item"]))


class Client:
    """A deployed probe, asked by its handle."""

    def __init__(self, name: str, url: str, **options: Any) -> None:
        from ray import serve

        self.name = name
        self.url = f"{url}/{name}"
        deployment = serve.deployment(Probe).options(max_ongoing_requests=100, **options)
        self.handle = serve.run(deployment.bind(), name=name, route_prefix=f"/{name}")

    def send(self, method: str, *args: Any) -> Any:
        return getattr(self.handle, method).remote(*args)

    def ask(self, method: str, *args: Any) -> Any:
        return self.send(method, *args).result(timeout_s=PATIENCE_S)

    def until(self, method: str, condition: Callable[[Any], bool], *args: Any) -> None:
        """Ask until the answer is as it should be."""
        for _ in range(int(PATIENCE_S * 50)):
            if condition(answer := self.ask(method, *args)):
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"{method} never came true: {answer}")

    def read(self, start: int, take: Callable[[str], object], most: int | None = None) -> None:
        """Read a stream that two share over HTTP, and leave after so many lines."""
        import httpx

        query = {"start": start, "name": "count_both"}
        with httpx.stream("GET", self.url, params=query, timeout=PATIENCE_S) as reply:
            for line in islice(reply.iter_lines(), most):
                take(line)

    def delete(self) -> None:
        from ray import serve

        serve.delete(self.name)


@pytest.fixture
def probe(url: str) -> Iterator[Client]:
    """One replica, behind a gate that is shut."""
    client = Client("probe", url, graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=5)
    yield client
    client.delete()


def fill(probe: Client, count: int) -> list[Any]:
    """Have one call held at the gate and `count` wait behind it; return their responses."""
    first = probe.send("ask_double", 0)
    probe.ask("entered")
    waiting = [probe.send("ask_double", number) for number in range(1, count + 1)]
    probe.until("stats", lambda stats: stats.queue_size == count, "double")
    return [first, *waiting]


def answers(responses: list[Any]) -> list[Any]:
    return [response.result(timeout_s=PATIENCE_S) for response in responses]


def test_parallel_callers_of_a_handle_are_answered_in_order_from_full_batches(probe: Client) -> None:
    """Nine wait while a batch runs: two full ones and the rest, each caller with its own answer."""
    responses = fill(probe, 9)
    probe.ask("open")
    assert answers(responses) == [2 * number for number in range(10)]
    sizes = [len(batch) for batch in probe.ask("batches")]
    assert sizes == [1, 4, 4, 1]


def test_a_cancelled_caller_gives_its_place_to_another(probe: Client) -> None:
    """Three of nine leave while they wait: they never run, and the batches are full all the same."""
    from ray.exceptions import TaskCancelledError
    from ray.serve.exceptions import RequestCancelledError

    cancelled = (TaskCancelledError, RequestCancelledError, asyncio.CancelledError, futures.CancelledError)
    responses = fill(probe, 9)
    left = [responses.pop(place) for place in (8, 5, 2)]
    for response in left:
        response.cancel()
    probe.until("stats", lambda stats: stats.total_cancelled == 3, "double")
    probe.ask("open")
    assert answers(responses) == [0, 2, 6, 8, 12, 14, 18]
    batches = probe.ask("batches")
    assert [len(batch) for batch in batches] == [1, 4, 2]
    assert sorted(sum(batches, [])) == [0, 1, 3, 4, 6, 7, 9]
    for response in left:
        with pytest.raises(cancelled):
            response.result(timeout_s=PATIENCE_S)


def test_refusals_reach_the_caller_of_a_handle_as_they_are(probe: Client) -> None:
    """A full queue and a deadline, which may become other status codes in the caller's hands."""
    responses = fill(probe, 9)
    with pytest.raises(batched.QueueFullError, match="max_queue_size"):
        probe.ask("ask_double", 10)
    probe.ask("open")
    assert answers(responses) == [2 * number for number in range(10)]


def test_a_deadline_passes_while_the_batch_runs(probe: Client) -> None:
    """The caller is free at once, and what it asked for never runs."""
    responses = fill(probe, 1)
    with pytest.raises(TimeoutError, match="deadline"):
        probe.ask("ask_double", 5, 50.0)
    probe.ask("open")
    assert answers(responses) == [0, 2]
    assert probe.ask("batches") == [[0], [1]]


def test_an_item_that_raises_harms_nobody_else(probe: Client) -> None:
    """By handle the error is what it was; over HTTP it is a 500, and the others are answered."""
    import httpx

    responses = [probe.send("ask_invert", item) for item in (1, 2, 0, 4)]
    failing = responses.pop(2)
    assert answers(responses) == [1, 0.5, 0.25]
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout_s=PATIENCE_S)

    def get(item: int) -> httpx.Response:
        return httpx.get(probe.url, params={"item": item}, timeout=PATIENCE_S)

    with ThreadPoolExecutor(8) as callers:
        replies = list(callers.map(get, [0, 1, 2, 0, 4, 5, 8, 0]))
    assert [reply.status_code for reply in replies] == [500, 200, 200, 500, 200, 200, 200, 500]
    assert [reply.json() for reply in replies if reply.is_success] == [1, 0.5, 0.25, 0.2, 0.125]
    sizes = probe.ask("sizes_of_invert")
    assert sizes.count(4) == 3


def numbers_of(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines]


def test_callers_of_one_batch_each_read_their_own_stream(probe: Client) -> None:
    """By handle and over HTTP, until the function ends."""
    by_handle = probe.handle.options(stream=True).ask_count.remote(1000, "count_both")
    lines: list[str] = []
    with ThreadPoolExecutor(2) as readers:
        over_http = readers.submit(probe.read, 2000, lines.append)
        rest = [next(by_handle)]
        handle = readers.submit(rest.extend, by_handle)
        until(lambda: len(lines) > 10 and len(rest) > 10)
        probe.ask("finish")
        over_http.result(PATIENCE_S)
        handle.result(PATIENCE_S)
    assert numbers_of(rest) == list(range(1000, 1000 + len(rest)))
    assert numbers_of(lines) == list(range(2000, 2000 + len(lines)))


def test_a_reader_that_leaves_frees_its_place(probe: Client) -> None:
    """Without it the function would count for ever, and nobody else would ever be served."""
    import httpx

    with httpx.stream("GET", probe.url, params={"start": 0}, timeout=PATIENCE_S) as reply:
        assert next(reply.iter_lines()) == "0 of 1"
    probe.until("stats", lambda stats: stats.running_items == 0, "count")
    by_handle = probe.handle.options(stream=True).ask_count.remote(7)
    assert next(by_handle) == "7 of 1\n"
    by_handle.cancel()
    probe.until("stats", lambda stats: stats.running_items == 0, "count")


def test_a_reader_that_leaves_harms_no_other(probe: Client) -> None:
    """Two share a batch; one goes, the other reads on without a gap."""
    staying: list[str] = []
    leaving: list[str] = []
    with ThreadPoolExecutor(2) as readers:
        stayed = readers.submit(probe.read, 500, staying.append)
        readers.submit(probe.read, 100, leaving.append, 1).result(PATIENCE_S)
        read = len(staying)
        until(lambda: len(staying) > read + 30)
        probe.ask("finish")
        stayed.result(PATIENCE_S)
    assert leaving == ["100 of 2"]
    assert numbers_of(staying) == list(range(500, 500 + len(staying)))


def test_what_is_decorated_travels_to_other_processes(url: str) -> None:
    """A function, and a method of an instance, that no other process could import: with their options."""
    import ray

    @batched.dynamically(batch_size=2, timeout_ms=0)
    def triple(items: list[int]) -> list[int]:
        return [3 * item for item in items]

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @batched.dynamically(batch_size=2, timeout_ms=0)
        def times(self, items: list[int]) -> list[int]:
            return [self.factor * item for item in items]

    @ray.remote(num_cpus=0.1)
    def call(function: Any, items: list[int]) -> tuple[list[int], list[int], int, str]:
        stats = function(items), [*function.map(items)], function.stats.total_batches, repr(function)
        function.shutdown()
        return stats

    model = Model(5)
    assert triple(1) == 3
    assert model.times(1) == 5
    for function, factor in ((triple, 3), (model.times, 5)):
        expected = [factor * item for item in range(5)]
        listed, mapped, batches, shown = ray.get(call.remote(function, [*range(5)]), timeout=PATIENCE_S)
        assert listed == mapped == expected
        assert batches >= 6  # of two at most; those of this process are not among them
        assert "batch_size=2" in shown
        assert function.stats.total_batches == 1


def test_threads_and_tasks_of_actors_share_batches(url: str) -> None:
    """An actor without Serve: with threads that call, or with `async def` methods that await."""
    import ray

    class Model:
        def __init__(self) -> None:
            self.gate = Gate(shut=True)

        @batched.dynamically(batch_size=8, timeout_ms=0)
        def echo(self, items: list[int]) -> list[int]:
            return self.gate(items)

        def batches(self) -> list[list[int]]:
            """Let the batches through once all nine items have come."""
            until(lambda: self.echo.stats.total_accepted == 9)
            self.gate.open()
            until(lambda: self.echo.stats.total_processed == 9)
            return self.gate.batches

    class Threads(Model):
        def ask(self, item: int) -> int:
            return self.echo(item)

    class Tasks(Model):
        async def ask(self, item: int) -> int:
            return await self.echo.acall(item)

        async def batches(self) -> list[list[int]]:
            return await asyncio.to_thread(super().batches)

    actors = [
        ray.remote(kind).options(num_cpus=0.1, max_concurrency=10).remote() for kind in (Threads, Tasks)
    ]
    try:
        for actor in actors:
            asked = [actor.ask.remote(item) for item in range(9)]
            batches = ray.get(actor.batches.remote(), timeout=2 * PATIENCE_S)
            assert len(batches) == 2  # whoever came first, and the rest
            assert sorted(sum(batches, [])) == [*range(9)]
            assert ray.get(asked, timeout=PATIENCE_S) == [*range(9)]
    finally:
        for actor in actors:
            ray.kill(actor)


def test_a_replica_that_is_taken_down_answers_what_it_has_accepted(url: str, tmp_path: Path) -> None:
    """Running and queued, and its process ends."""
    from ray import serve

    probe = Client("drained", url, graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=PATIENCE_S)
    responses = fill(probe, 9)
    process = psutil.Process(probe.ask("pid"))
    opened = probe.send("open_once", tmp_path / "deleting")
    with ThreadPoolExecutor(1) as other:
        deleted = other.submit(probe.delete)
        until(lambda: serve.status().applications["drained"].status == "DELETING")
        (tmp_path / "deleting").touch()
        assert answers(responses) == [2 * number for number in range(10)]
        opened.result(timeout_s=PATIENCE_S)
        deleted.result(PATIENCE_S)
    assert not psutil.wait_procs([process], timeout=PATIENCE_S)[1]


def test_a_replica_whose_function_hangs_is_taken_down_all_the_same(url: str) -> None:
    """Its callers get an error instead of waiting for ever."""
    probe = Client("hung", url, graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=0.5)
    responses = fill(probe, 9)
    process = psutil.Process(probe.ask("pid"))
    probe.delete()
    for response in responses:
        with pytest.raises(Exception) as raised:  # noqa: PT011  Ray's, or a CancelledError
            response.result(timeout_s=PATIENCE_S)
        assert not isinstance(raised.value, TimeoutError)
    assert not psutil.wait_procs([process], timeout=PATIENCE_S)[1]


@pytest.fixture
def example(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start an example as its readers do; at the end it has stopped, and Ray with it."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-u", EXAMPLES / name, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                env={**os.environ, **environment},
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    left = []
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        left += psutil.wait_procs(processes_of(process.pid), timeout=PATIENCE_S)[1]
    for orphan in left:
        orphan.kill()
    assert not left


def test_the_serving_example_answers_curl_and_its_own_questions(
    example: Callable[..., subprocess.Popen[str]],
) -> None:
    """It adds and writes for many at once, prints the batches, and serves on until it is interrupted."""
    address = port()
    process = example("ray_serve.py", "--stay", "--port", str(address))
    output: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if line.startswith("curl --no-buffer"):
                ready.set()
        ready.set()

    def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--max-time", str(PATIENCE_S), *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(STARTUP_S), output
        base = f"http://127.0.0.1:{address}"
        assert '"value":42' in curl(f"{base}/add?number=41"), output
        assert curl("--no-buffer", f"{base}/write?prompt=the+fox") == " runs over the lazy dog."
        bad = [
            curl("--write-out", "%{http_code}", f"{base}/{path}")
            for path in ("add?number=x", f"add?number={2**63}", "write")
        ]
        assert [answer.splitlines()[1] for answer in bad] == ["400"] * 3
        assert bad[0].startswith("number must be an integer, got 'x'")
        assert bad[1].startswith("number must be below 1,000,000,000,000,000,000, got 9223372036854775808")
        assert bad[2].startswith("prompt must be some text")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STARTUP_S)
        reader.join(PATIENCE_S)
    text = "".join(output)
    assert process.returncode == 0, text
    nine = "1, 2, 3, 4, 5, 6, 7, 8, 9"
    for way in ("nine numbers over HTTP", "nine numbers by handle", "one list by handle"):
        assert f"{way}: {nine}\n" in text
    sizes = [int(size) for line in output if "batches of" in line for size in line.split("of ")[1].split(",")]
    assert sum(sizes) == 27
    assert max(sizes) == 4
    assert "the fox |  runs over the lazy dog." in text
    assert "All answers verified" in text


def test_the_data_example_embeds_partitions_and_finds_them_again(
    example: Callable[..., subprocess.Popen[str]],
) -> None:
    """Two actors share the data set, and what they made is what the model makes of each sentence alone."""
    process = example("ray_data.py", "--sentences", "40", "--partitions", "4")
    output, _ = process.communicate(timeout=STARTUP_S)
    assert process.returncode == 0, output
    assert "40 sentences embedded" in output
    actors = [line for line in output.splitlines() if line.startswith("  actor ")]
    assert sum(int(line.split(": ")[1].split()[0]) for line in actors) == 40
    assert "40 queries answered online" in output
    assert "All 40 vectors verified" in output
