"""`prepare` and `finish`: a batch passes them before and after the function, and answers are as without."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batched
from batched._clock import monotonic
from tests.kit.flavours import Awaited, Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def add(items: list[int]) -> tuple[int, ...]:
    """Prepare: what the function gets is no list."""
    return tuple(item + 1 for item in items)


def double(prepared: tuple[int, ...]) -> dict[str, list[int]]:
    """Return outputs that are no rows yet."""
    return {"rows": [2 * item for item in prepared]}


def rows(outputs: dict[str, list[int]]) -> list[int]:
    """Finish."""
    return outputs["rows"]


def identity(items: Any) -> Any:
    """Return what it gets."""
    return items


def warm(flavour: Flavour, fn: Any, item: Any = 0, batches: int = 8) -> None:
    """Have batches tell how long stages take: until then none is taken ahead."""
    for _ in range(batches):
        flavour.call(fn, item)


def test_each_stage_gets_what_the_one_before_it_returned(flavour: Flavour) -> None:
    fn = flavour.decorate(double, prepare=add, finish=rows)
    assert flavour.call(fn, 1) == 4
    assert flavour.call(fn, [1, 2, 3]) == [4, 6, 8]
    assert flavour.map(fn, range(100)) == [2 * (item + 1) for item in range(100)]
    assert set(fn.stats.stages) == {"prepare", "function", "finish"}
    assert fn.stats.stages["function"].count == fn.stats.total_batches
    flavour.close(fn)


@pytest.mark.parametrize("given", ["prepare", "finish"])
def test_either_may_be_missing(flavour: Flavour, given: str) -> None:
    function: Callable[..., Any] = list if given == "prepare" else (lambda items: {"rows": items})
    fn = flavour.decorate(function, **{given: add if given == "prepare" else rows})
    assert flavour.call(fn, [1, 2]) == ([2, 3] if given == "prepare" else [1, 2])
    flavour.close(fn)


class Model:
    """Methods are bound to the instance, whether they are named or given."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def before(self, items: list[int]) -> list[int]:
        """Prepare."""
        return [item + self.offset for item in items]

    def after(self, outputs: list[int]) -> list[int]:
        """Finish."""
        return [output - self.offset for output in outputs]


def of_class(flavour: Flavour, prepare: Any, finish: Any) -> Any:
    """Return a class with a batched method."""

    def run(self: Any, prepared: list[int]) -> list[int]:
        return [10 * item for item in prepared]

    run.__qualname__ = "Model.run"
    return type("Model", (Model,), {"run": flavour.decorate(run, prepare=prepare, finish=finish)})


@pytest.mark.parametrize("named", [True, False])
def test_methods_of_the_class_are_called_on_the_instance(flavour: Flavour, named: bool) -> None:
    stages = ("before", "after") if named else (Model.before, Model.after)
    kind = of_class(flavour, *stages)
    one, other = kind(1), kind(5)
    assert flavour.call(one.run, [1, 2]) == [19, 29]
    assert flavour.call(other.run, [1, 2]) == [55, 65]
    for each in (one, other):
        flavour.close(each.run)


def test_functions_are_called_without_the_instance(flavour: Flavour) -> None:
    kind = of_class(flavour, lambda items: [item + 1 for item in items], identity)
    model = kind(7)
    assert flavour.call(model.run, 1) == 20
    flavour.close(model.run)


def test_an_instance_with_stages_is_collected_and_its_threads_end(flavour: Flavour) -> None:
    kind = of_class(flavour, "before", "after")
    model = kind(1)
    assert flavour.call(model.run, [1]) == [19]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


def test_columns_and_arrays_reach_prepare_as_they_would_reach_the_function(flavour: Flavour) -> None:
    def both(queries: list[int], passages: list[int]) -> list[tuple[int, int]]:
        return list(zip(queries, passages, strict=True))

    fn = flavour.decorate(lambda pairs: [a * b for a, b in pairs], prepare=both)
    assert flavour.call(fn, 3, 4) == 12
    assert flavour.call(fn, [1, 2], passages=[5, 6]) == [5, 12]
    flavour.close(fn)

    def sums(features: dict[str, Any]) -> Any:
        return features["x"].sum(axis=1)

    def score(sums: Any) -> dict[str, Any]:
        return {"scores": sums * 2}

    arrays = flavour.decorate_arrays(score, prepare=sums, finish=lambda outputs: outputs["scores"])
    answer = flavour.call(arrays, {"x": np.array([[1, 2], [3, 4]])})
    assert answer.tolist() == [6, 14]
    flavour.close(arrays)


def stage_that_fails(stage: str, culprit: int) -> dict[str, Callable[..., Any]]:
    """Return the three functions, one of which raises for a batch with the culprit."""

    def fails(items: Any) -> Any:
        if culprit in items:
            raise KeyError(culprit)
        return items

    return {name: fails if name == stage else identity for name in ("prepare", "function", "finish")}


@pytest.mark.parametrize(
    ("stage", "verb"), [("prepare", "preparing"), ("function", "running"), ("finish", "finishing")]
)
def test_an_item_that_fails_in_any_stage_fails_alone_and_its_error_names_the_stage(
    flavour: Flavour, stage: str, verb: str
) -> None:
    functions = stage_that_fails(stage, 3)
    gate = Gate(functions.pop("function"), shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, **functions)
    futures = [flavour.start(fn, item) for item in range(8)]
    gate.open()
    for item, future in enumerate(futures):
        if item != 3:
            assert future.result(PATIENCE_S) == item
    error = futures[3].exception(PATIENCE_S)
    assert isinstance(error, KeyError)
    assert [note for note in error.__notes__ if note.startswith("while ")] == [
        f"while {verb} a batch of 1 item"
    ]
    flavour.close(fn)


@pytest.mark.parametrize("stage", ["prepare", "function", "finish"])
def test_a_run_that_fails_in_a_stage_has_taken_the_time_until_then(flavour: Flavour, stage: str) -> None:
    """That of the stage that failed too, as retries may take so much time; of later stages it counts none."""

    def fails(items: Any) -> Any:
        began = monotonic()
        until(lambda: monotonic() > began)  # else a coarse clock would tell of no time
        raise KeyError(0)

    functions = {each: fails if each == stage else identity for each in ("prepare", "function", "finish")}
    fn = flavour.decorate(functions.pop("function"), isolate_errors=False, **functions)
    with pytest.raises(KeyError):
        flavour.call(fn, [1, 2])
    stats = fn.stats
    assert stats.stages[stage].min > 0.0
    assert stats.processing_time.min >= stats.stages[stage].min
    reached = {"prepare": [1, 0, 0], "function": [1, 1, 0], "finish": [1, 1, 1]}
    assert [times.count for times in stats.stages.values()] == reached[stage]
    flavour.close(fn)


@pytest.mark.parametrize(
    ("stage", "verb"), [("prepare", "preparing"), ("function", "running"), ("finish", "finishing")]
)
def test_a_restart_in_any_stage_reaches_callers_as_its_cause(flavour: Flavour, stage: str, verb: str) -> None:
    """There is no worker to be made anew; the batch runs once more, and the error names the stage."""
    runs = []

    def fails(items: Any) -> Any:
        runs.append(items)
        raise batched.RestartWorker from KeyError("lost")

    functions = {each: fails if each == stage else identity for each in ("prepare", "function", "finish")}
    fn = flavour.decorate(functions.pop("function"), **functions)
    with pytest.raises(KeyError, match="lost") as caught:
        flavour.call(fn, 1)
    assert caught.value.__notes__ == [f"while {verb} a batch of 1 item"]
    assert runs == [[1], [1]]
    flavour.close(fn)


def test_the_number_of_results_is_judged_after_the_last_stage(flavour: Flavour) -> None:
    fn = flavour.decorate(identity, finish=lambda outputs: outputs[1:], name="halved")
    with pytest.raises(batched.BatchError, match="one result per item") as caught:
        flavour.call(fn, [1, 2])
    flavour.close(fn)
    assert str(caught.value).startswith("finish of halved returned 1 result for a batch of 2 items")
    short = flavour.decorate(lambda items: items[:1], finish=lambda outputs: outputs * 2)
    assert flavour.call(short, [1, 2]) == [1, 1]
    flavour.close(short)


def test_a_wrong_number_of_results_that_comes_from_prepare_is_told_so(flavour: Flavour) -> None:
    """The function has a result for each element that it was given."""
    fn = flavour.decorate(identity, prepare=lambda items: items[1:])
    with pytest.raises(batched.BatchError) as caught:
        flavour.call(fn, [1, 2, 3])
    assert "prepare returned 2 elements for these, which the function was given" in caught.value.__notes__
    flavour.close(fn)
    of_function = flavour.decorate(lambda items: items[1:], prepare=identity)
    with pytest.raises(batched.BatchError) as caught:
        flavour.call(of_function, [1, 2, 3])
    assert not any(note.startswith("prepare") for note in caught.value.__notes__)
    flavour.close(of_function)


def test_a_wrong_number_of_results_that_comes_from_the_function_is_told_so(flavour: Flavour) -> None:
    """`finish` has a result for each element that it was given."""
    fn = flavour.decorate(lambda items: items[1:], finish=identity)
    with pytest.raises(batched.BatchError) as caught:
        flavour.call(fn, [1, 2, 3])
    notes = caught.value.__notes__
    assert "the function returned 2 elements for these, which finish was given" in notes
    flavour.close(fn)


def test_an_error_of_a_stage_that_was_given_none_says_so(flavour: Flavour) -> None:
    for stages, function, told in (
        ({"prepare": lambda _: None}, identity, "prepare returned None, which the function was given"),
        ({"finish": list}, lambda _: None, "the function returned None, which finish was given"),
    ):
        fn = flavour.decorate(function, **stages)
        with pytest.raises(Exception, match="None") as caught:
            flavour.call(fn, [1, 2])
        assert told in caught.value.__notes__
        flavour.close(fn)


def test_outputs_of_arrays_that_finish_has_made_are_named_by_it(flavour: Flavour) -> None:
    fn = flavour.decorate_arrays(lambda features: features["a"], finish=lambda outputs: outputs[1:], name="f")
    with pytest.raises(batched.BatchError, match="^finish of f must return one row for each row"):
        flavour.call(fn, {"a": np.zeros((3, 1))})
    flavour.close(fn)


def test_current_batch_is_known_in_each_stage(flavour: Flavour) -> None:
    seen: list[int] = []

    def look(items: Any) -> Any:
        seen.append(batched.current_batch().size)
        return items

    fn = flavour.decorate(look, prepare=look, finish=look)
    flavour.call(fn, [1, 2, 3])
    assert seen == [3, 3, 3]
    flavour.close(fn)


@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_a_call_from_inside_a_stage_would_wait_for_itself(flavour: Flavour, stage: str) -> None:
    """As one from inside the function does; on a loop, where the stage is `async def`."""

    def call(items: list[int]) -> Any:
        return [fn(item) for item in items]

    async def acall(items: list[int]) -> Any:
        return [await fn(item) for item in items]

    if not flavour.blocks:
        if not isinstance(flavour, Awaited) or flavour.name != "aio":
            pytest.skip("a thread of a worker cannot await")
        fn = flavour.decorate(identity, isolate_errors=False, **{stage: acall})
    else:
        fn = flavour.decorate(identity, isolate_errors=False, **{stage: call})
    with pytest.raises(RuntimeError, match="inside its own batch function"):
        flavour.call(fn, 1)
    flavour.close(fn)


class Watch:
    """Stages that note how many batches are in each, and can be held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = {"prepare": 0, "function": 0, "finish": 0}
        self.most = dict(self.inside)
        self.failed: list[bool] = []
        """Of each batch that failed in a stage, or passed the last one, whether it failed."""

    def may_seem_an_outage(self) -> bool:
        """Whether three batches failed in a row: then batches may not be divided until something works."""
        return any(all(self.failed[at : at + 3]) for at in range(len(self.failed) - 2))

    def stage(self, name: str, answer: Callable[[Any], Any] = identity) -> Callable[[Any], Any]:
        """Return the function of a stage."""

        def run(items: Any) -> Any:
            with self.lock:
                self.inside[name] += 1
                self.most[name] = max(self.most[name], self.inside[name])
            try:
                answered = answer(items)
            except BaseException:
                self.failed.append(True)
                raise
            else:
                if name == "finish":
                    self.failed.append(False)
                return answered
            finally:
                with self.lock:
                    self.inside[name] -= 1

        return run


def test_while_one_batch_is_in_the_function_the_next_is_prepared_and_the_one_before_finished(
    flavour: Flavour,
) -> None:
    """Full batches wait, so that it pays. Each stage is held until the next batch is in the one before."""
    watch = Watch()
    last = 4
    prepared, begun = ([threading.Event() for _ in range(last + 1)] for _ in range(2))

    def prepare(items: list[int]) -> list[int]:
        prepared[items[0]].set()
        return items

    def function(items: list[int]) -> list[int]:
        turn = items[0]
        begun[turn].set()
        if 0 < turn < last:
            assert prepared[turn + 1].wait(PATIENCE_S), "no batch was prepared meanwhile"
        return items

    def finish(items: list[int]) -> list[int]:
        turn = items[0]
        if 0 < turn < last:
            assert begun[turn + 1].wait(PATIENCE_S), "no batch was in the function meanwhile"
        return items

    fn = flavour.decorate(
        watch.stage("function", function),
        prepare=watch.stage("prepare", prepare),
        finish=watch.stage("finish", finish),
        batch_size=2,
        timeout_ms=0,
        adaptive=False,
    )
    warm(flavour, fn, [0, 0])
    futures = [flavour.start(fn, [turn, turn]) for turn in range(1, last + 1)]
    assert [future.result(PATIENCE_S) for future in futures] == [[turn] * 2 for turn in range(1, last + 1)]
    assert max(watch.most.values()) == 1
    assert fn.stats.closed.get("ahead") or fn.stats.closed.get("full")
    flavour.close(fn)


def test_a_batch_whose_callers_have_left_goes_on_no_further(flavour: Flavour) -> None:
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(identity, shut=True)
    ran = Gate(identity)
    fn = flavour.decorate(ran, prepare=gate, timeout_ms=0)
    left = flavour.start(fn, "left")
    gate.wait_for_batch()
    flavour.cancel(left)
    gate.open()
    assert flavour.call(fn, "stays") == "stays"
    assert ran.batches == [["stays"]]
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 2
    flavour.close(fn)


def test_closing_runs_what_waits_through_all_stages(flavour: Flavour) -> None:
    gate = Gate(identity, shut=True)
    fn = flavour.decorate(gate, prepare=add, finish=list, batch_size=2, timeout_ms=60_000)
    futures = [flavour.start(fn, [item, item]) for item in range(6)]
    gate.wait_for_batch()
    gate.open()
    flavour.close(fn)
    assert [future.result(PATIENCE_S) for future in futures] == [[item + 1] * 2 for item in range(6)]


def test_streams_and_several_batches_in_one_stage_are_refused(flavour: Flavour) -> None:
    def pieces(items: list[int]) -> Any:
        yield items

    with pytest.raises(TypeError, match="cannot be used with a function that streams"):
        flavour.decorate(pieces, prepare=identity)
    with pytest.raises(ValueError, match="max_concurrent_batches=2"):
        flavour.decorate(identity, finish=identity, max_concurrent_batches=2)
    fn = flavour.decorate(identity, finish=identity)
    with pytest.raises(ValueError, match="max_concurrent_batches=2"):
        fn.configure(max_concurrent_batches=2)
    assert flavour.call(fn, 1) == 1
    flavour.close(fn)


def test_the_name_of_a_method_needs_an_instance_that_has_it(flavour: Flavour) -> None:
    fn = flavour.decorate(identity, prepare="tokenize")
    with pytest.raises(TypeError, match="prepare='tokenize' names a method, but"):
        flavour.call(fn, 1)
    kind = of_class(flavour, "missing", None)
    with pytest.raises(TypeError, match="has no method of that name"):
        flavour.call(kind(1).run, 1)


def test_an_async_stage_needs_an_async_function(flavour: Flavour) -> None:
    async def prepare(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return items

    if flavour.name == "aio":
        fn = flavour.decorate(identity, prepare=prepare, finish=prepare)
        assert flavour.call(fn, [1, 2]) == [1, 2]
        flavour.close(fn)
        return
    with pytest.raises(TypeError, match="prepare is `async def`"):
        flavour.decorate(identity, prepare=prepare)
    fn = flavour.decorate(identity, prepare=lambda items: prepare(items), isolate_errors=False)
    with pytest.raises(TypeError, match="cannot be `async def`"):
        flavour.call(fn, 1)
    flavour.close(fn)


@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_a_stage_that_is_to_be_awaited_in_a_thread_fails_all_of_the_batch_at_once(
    flavour: Flavour, stage: str
) -> None:
    """No item is to blame for it, so none is looked for."""
    ran: list[int] = []

    async def asynchronous(items: list[int]) -> list[int]:
        return items

    def unseen(items: list[int]) -> Any:
        ran.append(len(items))
        return asynchronous(items)

    if flavour.name == "aio":
        pytest.skip("stages of it may be awaited")
    fn = flavour.decorate(identity, timeout_ms=0, **{stage: unseen})
    errors = flavour.call(fn.options(return_exceptions=True), [0, 1, 2, 3])
    assert [type(error) for error in errors] == [TypeError] * 4
    with pytest.raises(TypeError, match=f"^{stage} of .* runs in a thread, so it cannot be `async def`"):
        raise errors[0]
    assert ran == [4]
    flavour.close(fn)


@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_an_object_with_an_async_call_is_an_async_stage(flavour: Flavour, stage: str) -> None:
    class Asynchronous:
        async def __call__(self, items: list[int]) -> list[int]:
            return items

    if flavour.name == "aio":
        pytest.skip("stages of it may be awaited")
    with pytest.raises(TypeError, match=f"{stage} is `async def`"):
        flavour.decorate(identity, **{stage: Asynchronous()})


def test_the_signature_has_the_parameters_of_prepare_and_the_answer_of_finish(flavour: Flavour) -> None:
    def tokenize(texts: list[str]) -> tuple[str, ...]:
        return tuple(texts)

    def unpack(outputs: Any) -> list[int]:
        return list(outputs)

    fn = flavour.decorate(lambda prepared: [len(each) for each in prepared], prepare=tokenize, finish=unpack)
    seen = inspect.signature(fn)
    assert list(seen.parameters) == ["texts"]
    assert "int" in str(seen.return_annotation)
    assert flavour.call(fn, texts="four") == 4
    flavour.close(fn)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    calls=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=9), min_size=1, max_size=12),
    failing=st.dictionaries(
        st.integers(0, 30), st.sampled_from(["prepare", "function", "finish", "returned"]), max_size=4
    ),
    batch_size=st.integers(1, 8),
    adaptive=st.booleans(),
)
def test_whatever_fails_in_any_stage_each_caller_has_what_it_would_have_alone(
    flavour: Flavour,
    calls: list[list[int]],
    failing: dict[int, str],
    batch_size: int,
    adaptive: bool,
) -> None:
    """And never are two batches in one stage."""
    watch = Watch()

    def stage(name: str, watch: Watch = watch) -> Callable[[Any], Any]:
        def run(items: list[Any]) -> list[Any]:
            for item in items:
                if failing.get(item) == name:
                    raise KeyError(item)
            if name == "finish":
                return [KeyError(item) if failing.get(item) == "returned" else item for item in items]
            return list(items)

        return watch.stage(name, run)

    fn = flavour.decorate(
        stage("function"),
        prepare=stage("prepare"),
        finish=stage("finish"),
        batch_size=batch_size,
        timeout_ms=0.2,
        adaptive=adaptive,
    )
    answers = [flavour.start(fn.options(return_exceptions=True), call) for call in calls]
    for call, answer in zip(calls, answers, strict=True):
        for item, got in zip(call, answer.result(PATIENCE_S), strict=True):
            if item in failing:
                assert isinstance(got, KeyError)
                assert got.args == (item,) or watch.may_seem_an_outage()
            elif not isinstance(got, KeyError):
                assert got == item
            else:
                assert got.args[0] in failing
                assert watch.may_seem_an_outage()
    assert max(watch.most.values()) == 1
    flavour.close(fn)
