"""The Prometheus page while batchers come, go, break and fork."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

import batched
from batched import aio, inference
from batched._core.stats import Stats
from batched._drivers.thread import ThreadDriver
from tests.kit.gate import PATIENCE_S, Gate, turns_until, until
from tests.kit.kept import driver_of
from tests.kit.metrics_page import Figures, check_identities, check_nothing_falls, expected, page
from tests.kit.script import run_script


class Model:
    """Each instance has a batcher of its own, all of one name."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.answer = gate or list

    @batched.dynamically(name="merged", batch_size=8, timeout_ms=0)
    def embed(self, items: list[int]) -> list[int]:
        return self.answer(items)  # type: ignore[no-any-return]


def use(models: list[Model], items: list[int]) -> None:
    for model in models:
        assert model.embed(items) == items


def drop(models: list[Model]) -> None:
    """Have models collected, and their batchers with their threads."""
    batchers = [weakref.ref(driver_of(model.embed)) for model in models]
    models.clear()
    until(lambda: gc.collect() is not None and not any(batcher() for batcher in batchers))


def test_batchers_of_one_name_are_one_series(registry: CollectorRegistry) -> None:
    """A hundred instances: sums, and the age of the oldest batch."""
    gate = Gate(shut=True)
    models = [Model() for _ in range(98)] + [Model(gate), Model(gate)]
    use(models[:98], [1, 2, 3])
    futures = [model.embed.submit(1) for model in models[98:]]
    for _ in range(2):
        gate.wait_for_batch()
    running = driver_of(models[98].embed).batcher.running
    for batch in running:
        running[batch] -= 1000  # as if it had been running for so long
    figures = page(registry)["merged"]
    check_identities(figures)
    assert (figures["batchers",], figures["slots",], figures["running_batches",]) == (100, 100, 2)
    assert (figures["accepted_items_total",], figures["processed_items_total",]) == (296, 294)
    assert figures["batch_size_items_bucket", "4.0"] == figures["batch_size_items_count",] == 98
    assert figures["batch_size_items_sum",] == 294
    assert 1000 < figures["running_batch_age_seconds",] < 1000 + PATIENCE_S
    assert figures["busy_seconds_total",] > 1000
    gate.open()
    assert [futures.pop().result(PATIENCE_S) for _ in range(2)] == [1, 1]  # a future refers to its batcher
    del running, batch
    drop(models)
    assert "merged" not in page(registry)


def test_counters_do_not_fall_when_a_batcher_is_gone(registry: CollectorRegistry) -> None:
    """What it has counted stays, after the last scrape too, while another of its name lives; then all go."""
    stays, goes = [Model()], [Model(), Model()]
    use([*stays, *goes], [1, 2])
    before = page(registry)
    assert before["merged"]["processed_items_total",] == 6
    use(goes[:1], [3, 4, 5])
    drop(goes)
    after = page(registry)
    check_nothing_falls(before, after)
    check_identities(after["merged"])
    assert (after["merged"]["processed_items_total",], after["merged"]["batchers",]) == (9, 1)
    assert after["merged"]["batch_size_items_sum",] == 9
    use(stays, [6])
    assert page(registry)["merged"]["processed_items_total",] == 10
    drop(stays)
    assert "merged" not in page(registry)
    again = [Model()]
    use(again, [1])
    assert page(registry)["merged"]["processed_items_total",] == 1
    drop(again)


@pytest.mark.parametrize("then", ["lives", "goes too"])
def test_counters_do_not_fall_with_a_closed_event_loop(
    registry: CollectorRegistry, name: str, then: str
) -> None:
    """Whose running batch, and callers, go with it; whether the batcher goes with it or not."""

    async def endless(items: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return items

    decorated = [aio.dynamically(endless, name=name, batch_size=1, timeout_ms=0) for _ in range(2)]
    assert [fn.stats.total_accepted for fn in decorated] == [0, 0]
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(decorated[1](item)) for item in (1, 2)]
    loop.run_until_complete(turns_until(lambda: decorated[1].stats.running))
    before = page(registry)
    loop.set_exception_handler(lambda *_: None)  # it would say that the tasks of this test were pending
    loop.close()
    del loop, tasks
    if then == "goes too":
        decorated.pop()
    gc.collect()
    assert before[name]["running_batches",] == 1
    assert before[name]["busy_seconds_total",] > 0
    after = page(registry)
    check_nothing_falls({name: before[name]}, after)  # of other tests, workers may go with this garbage
    check_identities(after[name])
    assert after[name]["cancelled_items_total",] == 2
    assert after[name]["batchers",] == len(decorated)


def test_pages_are_whole_while_everything_happens(registry: CollectorRegistry, name: str) -> None:
    """Threads and loops call, cancel, are late, fail; batchers come and go: no scrape raises or is untrue."""
    shared = batched.dynamically(
        failing, name=f"{name} shared", batch_size=8, timeout_ms=0.2, max_queue_size=30
    )
    arrays = inference.dynamically(lambda f: f["x"] * 2, name=f"{name} arrays", timeout_ms=0)
    looped = aio.dynamically(failing_async, name=f"{name} looped", batch_size=4, timeout_ms=0, cache={})
    brief = partial(brief_lives, f"{name} brief")
    threads = [brief, brief, partial(call, shared, arrays), partial(call, shared, arrays)]
    jobs = [*threads, lambda: asyncio.run(call_in_tasks(looped))]
    with ThreadPoolExecutor(len(jobs) + 1) as pool:
        running = [pool.submit(job) for job in jobs]

        def scrape() -> None:
            before: dict[str, Figures] = {}
            scrapes = 0
            while scrapes < 3 or not all(job.done() for job in running):
                after = {of: figures for of, figures in page(registry).items() if of.startswith(f"{name} ")}
                for figures in after.values():
                    check_identities(figures)
                check_nothing_falls(before, after)
                before = after
                scrapes += 1
                wait(running, timeout=1e-3)  # else they would hardly get their turn

        other = pool.submit(scrape)  # as a second Prometheus would
        scrape()
        for job in (other, *running):
            job.result(PATIENCE_S)
    until(lambda: not shared.stats.queue_size and not shared.stats.running)
    last = page(registry)
    assert last[f"{name} arrays"]["processed_items_total",] == 300
    said = expected(shared.stats)
    assert {key: last[f"{name} shared"][key] for key in said} == said


def brief_lives(name: str) -> None:
    for life in range(15):
        fn = batched.dynamically(failing, name=name, timeout_ms=0)
        assert fn.submit([1, 2, 3]).result(PATIENCE_S) == [1, 2, 3]
        if life % 2:
            fn.shutdown(wait=False)


def call(shared: Any, arrays: Any) -> None:
    for turn in range(150):
        arrays(x=np.ones((1, 1 + turn % 3)))
        with suppress(batched.QueueFullError):
            future = shared.submit(turn)
            if turn % 5 == 0:
                future.cancel()
        with suppress(batched.QueueFullError, TimeoutError, ValueError):
            shared.options(deadline_ms=turn % 3 + 0.01)([turn] * (turn % 12 + 1))


async def call_in_tasks(looped: Any) -> None:
    for turn in range(60):
        calls = [asyncio.create_task(looped(item)) for item in range(turn, turn + 5)]
        if turn % 4 == 0:
            calls[0].cancel()
        await asyncio.wait(calls, timeout=PATIENCE_S)
        errors = [call.exception() for call in calls if not call.cancelled()]
        assert all(error is None or isinstance(error, ValueError) for error in errors)


def failing(items: list[int]) -> list[int]:
    if 13 in items:
        raise ValueError("13")
    return items


async def failing_async(items: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return failing(items)


def test_a_broken_batcher_leaves_the_others_their_page(
    registry: CollectorRegistry, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged; its series pauses, or stands still if others share it, until it can be read."""
    alone = batched.dynamically(list, name=f"{name} alone", timeout_ms=0)
    broken, whole = (batched.dynamically(list, name=name, timeout_ms=0) for _ in range(2))
    for fn in (alone, broken, whole):
        fn([1, 2])
    before = page(registry)
    stats: Any = ThreadDriver.stats
    unreadable = {driver_of(alone), driver_of(broken)}

    def read(driver: ThreadDriver) -> Stats:
        result: Stats = stats.fget(driver)
        return 1 / 0 if driver in unreadable else result  # type: ignore[return-value]

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger="batched"):
        patch.setattr(ThreadDriver, "stats", property(read))
        for _ in range(2):
            during = page(registry)
            check_nothing_falls(before, during)
            assert f"{name} alone" not in during
            assert during[name]["processed_items_total",] == 4
            assert during[name]["batchers",] == 1
    assert f"{name} alone: could not read its stats" in caplog.text
    broken(3)
    after = page(registry)
    check_nothing_falls(before, after)
    assert after[f"{name} alone"]["processed_items_total",] == 2
    assert after[name]["processed_items_total",] == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_page_of_its_own() -> None:
    """It begins at zero, also when a scrape was under way; the parent's goes on."""
    run_script(
        """
        from prometheus_client import CollectorRegistry, generate_latest
        from batched.prometheus import Collector
        registry = CollectorRegistry()
        collector = Collector(registry)

        def processed():
            page = generate_latest(registry).decode()
            return page.partition('batched_processed_items_total{name="double"} ')[2].partition("\\n")[0]

        double([1, 2, 3])
        other = batched.dynamically(lambda items: items, name="double", timeout_ms=0)
        other([4, 5])
        assert processed() == "5.0"
        del other
        for under_way in (False, True):
            if under_way:
                collector._history._lock.acquire()
            pid = os.fork()
            if pid == 0:
                assert processed() == "0.0", processed()
                double(1)
                assert processed() == "1.0", processed()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        collector._history._lock.release()
        double(1)
        assert processed() == "6.0", processed()
        """
    )
