"""`prepare` and `finish` with `workers`: each worker prepares, runs and finishes its batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.pooled import Load, needs_workers, share

STAGES = ("prepare", "function", "finish")


@pytest.fixture(autouse=True)
def _needs_workers(flavour: Flavour) -> None:
    needs_workers(flavour)


def identity(items: Any) -> Any:
    """Return what it gets."""
    return items


def staged(flavour: Flavour, workers: Any, functions: dict[str, Callable[..., Any]], **options: Any) -> Any:
    """Return the function of these stages, which runs on `workers`."""
    functions = dict.fromkeys(STAGES, identity) | functions
    (fn,) = share(flavour, workers, functions.pop("function"), **functions, **options)
    return fn


def test_each_stage_of_a_batch_has_the_same_worker(flavour: Flavour) -> None:
    """Its state too, and its thread; and each stage gets what the one before it returned."""

    def note(value: Any) -> Any:
        worker = batched.current_worker()
        return [(*each, (worker.name, worker.state, threading.get_ident())) for each in value]

    def prepare(items: list[int]) -> Any:
        return note([(item,) for item in items])

    with batched.Workers(["cuda:0", "cuda:1"], initializer=Load()) as gpus:
        fn = staged(flavour, gpus, {"prepare": prepare, "function": note, "finish": note})
        answers = [flavour.start(fn, [item, item]) for item in range(40)]
        for item, answer in enumerate(answers):
            for got, *stages in answer.result(PATIENCE_S):
                assert got == item
                assert len(stages) == 3
                assert len({*stages}) == 1
                assert stages[0][1].startswith(stages[0][0])
    stats = fn.stats
    assert [times.count for times in stats.stages.values()] == [stats.total_batches] * 3


def test_arrays_pass_their_stages_too(flavour: Flavour) -> None:
    def sums(features: dict[str, Any]) -> Any:
        return features["x"].sum(axis=1)

    def score(sums: Any) -> dict[str, Any]:
        return {"scores": sums * batched.current_worker().state}

    with batched.Workers(1, initializer=lambda name: 2 + int(name)) as workers:
        fn = flavour.decorate_arrays(
            score, prepare=sums, finish=lambda outputs: outputs["scores"], workers=workers
        )
        assert flavour.call(fn, {"x": np.array([[1, 2], [3, 4]])}).tolist() == [6, 14]


@pytest.mark.parametrize("stage", STAGES)
def test_while_a_batch_is_in_one_stage_another_worker_takes_the_next_through_all(
    flavour: Flavour, stage: str
) -> None:
    held, entered = threading.Event(), threading.Event()

    def hold(items: list[str]) -> list[str]:
        if "held" in items:
            entered.set()
            assert held.wait(PATIENCE_S)
        return items

    with batched.Workers(2) as workers:
        fn = staged(flavour, workers, {stage: hold})
        first = flavour.start(fn, "held")
        assert entered.wait(PATIENCE_S)
        assert [flavour.call(fn, item) for item in ("a", "b")] == ["a", "b"]
        held.set()
        assert first.result(PATIENCE_S) == "held"


def test_two_functions_with_stages_take_turns_on_a_worker(flavour: Flavour) -> None:
    """No stage of one runs during a stage of the other, so that a model or tokenizer has no two users."""
    alone = threading.Lock()

    def stage(items: list[int]) -> list[int]:
        assert alone.acquire(blocking=False), "two stages at once"
        try:
            return [item + 1 for item in items]
        finally:
            alone.release()

    with batched.Workers(1) as workers:
        one = staged(flavour, workers, dict.fromkeys(STAGES, stage))
        (other,) = share(flavour, workers, stage, finish=stage)
        answers = [(flavour.start(one, item), flavour.start(other, item)) for item in range(20)]
        for item, (first, second) in enumerate(answers):
            assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == (item + 3, item + 2)
    assert set(one.stats.stages) == set(other.stats.stages) == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_its_worker_made_anew_and_the_batch_passes_all_once_more(
    flavour: Flavour, stage: str
) -> None:
    """No caller notices."""
    load = Load()
    runs: list[tuple[str, str]] = []

    def run(name: str) -> Callable[[Any], Any]:
        def step(items: list[int]) -> list[int]:
            state = batched.current_worker().state
            runs.append((name, state))
            if name == stage and state == "gpu, load 1":
                raise batched.RestartWorker from RuntimeError("device lost")
            return items

        return step

    with batched.Workers(["gpu"], initializer=load) as gpus:
        fn = staged(flavour, gpus, {name: run(name) for name in STAGES})
        assert flavour.call(fn, [1, 2]) == [1, 2]
        until(lambda: gpus.stats.workers[0].restarts == 1)
    reached = STAGES[: STAGES.index(stage) + 1]
    assert runs == [(name, "gpu, load 1") for name in reached] + [(name, "gpu, load 2") for name in STAGES]


@pytest.mark.parametrize("stage", STAGES)
def test_a_call_from_inside_a_stage_is_refused(flavour: Flavour, stage: str) -> None:
    """It might wait for its own worker."""
    flavour.needs_threads()

    def call(items: list[int]) -> list[int]:
        return [fn(item) for item in items]

    with batched.Workers(2, name="gpu") as gpus:
        fn = staged(flavour, gpus, {stage: call}, isolate_errors=False)
        with pytest.raises(RuntimeError, match="from a worker of 'gpu', on which it runs itself"):
            flavour.call(fn, 1)


def test_a_batch_whose_callers_have_left_goes_on_no_further(flavour: Flavour) -> None:
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate, ran = Gate(identity, shut=True), Gate(identity)
    with batched.Workers(1) as workers:
        fn = staged(flavour, workers, {"prepare": gate, "function": ran})
        left = flavour.start(fn, "left")
        gate.wait_for_batch()
        flavour.cancel(left)
        gate.open()
        assert flavour.call(fn, "stays") == "stays"
        assert ran.batches == [["stays"]]
        stats = fn.stats
        assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 2


def test_closing_runs_what_waits_through_all_stages(flavour: Flavour) -> None:
    """Of the function, and of all functions with the workers."""
    gate = Gate(identity, shut=True)
    with batched.Workers(2) as workers:
        for end in (flavour.close, lambda _: workers.shutdown()):
            gate.close()
            fn = staged(
                flavour, workers, {"function": gate, "finish": lambda items: [2 * each for each in items]}
            )
            futures = [flavour.start(fn, [item] * 4) for item in range(6)]
            gate.wait_for_batch()
            gate.open()
            end(fn)
            assert [future.result(PATIENCE_S) for future in futures] == [[2 * item] * 4 for item in range(6)]
            with pytest.raises(batched.ClosedError):
                flavour.call(fn, 1)


def test_a_call_that_is_late_before_its_batch_starts_is_not_prepared(flavour: Flavour) -> None:
    gate = Gate(identity, shut=True)
    with batched.Workers(1) as workers:
        busy, fn = share(flavour, workers, gate, identity, prepare=(prepared := Gate(identity)))
        first = flavour.start(busy, 1)
        prepared.wait_for_batch()
        gate.wait_for_batch()
        with pytest.raises(TimeoutError):
            flavour.call(fn.options(deadline_ms=1), "late")
        gate.open()
        assert first.result(PATIENCE_S) == 1
        assert flavour.call(fn, "in time") == "in time"
    assert prepared.batches == [[1], ["in time"]]


def test_a_warm_up_passes_all_stages_in_each_worker(flavour: Flavour) -> None:
    """And counts nowhere, in no stage."""
    noted = []

    def note(items: list[str]) -> list[str]:
        noted.append((batched.current_worker().name, len(items)))
        return items

    with batched.Workers(["a", "b"]) as workers:
        workers.start()
        fn = staged(flavour, workers, dict.fromkeys(STAGES, note), batch_size=2, batch_sizes=(1, 2))
        if flavour.in_tasks:
            flavour.run(fn.awarm_up("text"))  # type: ignore[attr-defined]
        else:
            fn.warm_up("text")
        assert sorted(noted) == [(name, size) for name in "ab" for size in (1, 2) for _ in STAGES]
        assert fn.stats.total_batches == 0
        assert not any(times.count for times in fn.stats.stages.values())
        assert flavour.call(fn, "text") == "text"


def test_an_initializer_that_fails_leaves_nothing_half_prepared(flavour: Flavour) -> None:
    load = Load(failures=1)
    prepared = Gate(identity)
    with batched.Workers(["gpu"], initializer=load) as gpus:
        fn = staged(flavour, gpus, {"prepare": prepared})
        with pytest.raises(OSError, match="no memory on gpu"):
            flavour.call(fn, 1)
        assert prepared.batches == []
        assert flavour.call(fn, 2) == 2


def test_an_async_function_has_plain_stages_around_it(flavour: Flavour) -> None:
    """It runs on the loop of its worker."""
    if flavour.name == "aio-plain":
        pytest.skip("an `async def` function of batched.aio has no worker")

    async def function(items: list[int]) -> list[int]:
        return [item * batched.current_worker().state for item in items]

    with batched.Workers(1, initializer=lambda name: 10) as workers:
        fn = staged(
            flavour, workers, {"prepare": lambda items: [item + 1 for item in items], "function": function}
        )
        assert flavour.call(fn, [1, 2]) == [20, 30]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    calls=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=9), min_size=1, max_size=12),
    failing=st.dictionaries(st.integers(0, 30), st.sampled_from([*STAGES, "returned"]), max_size=4),
    batch_size=st.integers(1, 8),
    number=st.integers(1, 3),
)
def test_whatever_fails_in_any_stage_each_caller_has_an_answer_of_its_own(
    flavour: Flavour, calls: list[list[int]], failing: dict[int, str], batch_size: int, number: int
) -> None:
    """An item that fails in no stage has its result, unless all seemed to fail; and nothing is lost."""

    def stage(name: str) -> Callable[[Any], Any]:
        def run(items: list[Any]) -> list[Any]:
            for item in items:
                if failing.get(item) == name:
                    raise KeyError(item)
            if name == "finish":
                return [KeyError(item) if failing.get(item) == "returned" else item for item in items]
            return list(items)

        return run

    with batched.Workers(number) as workers:
        fn = staged(flavour, workers, {name: stage(name) for name in STAGES}, batch_size=batch_size)
        answers = [flavour.start(fn.options(return_exceptions=True), call) for call in calls]
        for call, answer in zip(calls, answers, strict=True):
            for item, got in zip(call, answer.result(PATIENCE_S), strict=True):
                assert got == item or (isinstance(got, KeyError) and got.args[0] in failing)
                assert item not in failing or isinstance(got, KeyError)
                assert failing or got == item
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed == sum(map(len, calls))
    assert stats.running == ()
