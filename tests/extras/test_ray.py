"""Batched functions in the processes of a real, local Ray: replicas, actors and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.ray_probe import Client, answers, fill

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(280),  # the first test starts Ray, and the examples start others
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's, of what it imports
]


@pytest.fixture
def probe(url: str) -> Iterator[Client]:
    """One replica, behind a gate that is shut."""
    client = Client("probe", url, graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=5)
    yield client
    client.delete()


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
    """Without it the function would count for ever, and no other caller would ever be served."""
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
            assert len(batches) == 2  # the calls that came first, and the rest
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
