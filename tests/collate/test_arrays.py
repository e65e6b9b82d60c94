"""What may be passed as features, from single calls to maps and methods."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections import OrderedDict, UserDict
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from batched import BatchError, aio, inference
from tests.kit.company import company, is_numpy, itself, same
from tests.kit.flavours import Flavour, as_async
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.optional import torch


def test_only_rows_that_ran_can_have_failed() -> None:
    """Of a call in several batches, the first of which cannot be divided among its rows."""
    fn = inference.dynamically(
        lambda features: {"y": features["a"] + features["b"]},
        batch_size=2,
        timeout_ms=0,
        unpad_outputs=True,
        small_batch_threshold=1,
    )
    a = [np.zeros(2), np.zeros(3)] * 3
    with pytest.raises(BatchError):
        fn({"a": a, "b": a[1:] + a[:1]})
    fn.shutdown()
    assert (fn.stats.total_processed, fn.stats.total_failed, fn.stats.total_cancelled) == (2, 2, 4)


@pytest.mark.parametrize(
    "mapping",
    [dict, OrderedDict, UserDict, MappingProxyType],
    ids=["dict", "OrderedDict", "UserDict", "proxy"],
)
def test_any_mapping_is_a_call(flavour: Flavour, mapping: Any) -> None:
    """The function gets a plain dict, with the keys in the caller's order."""
    gate = Gate(lambda features: features["b"] + features["a"], note=list)
    fn = flavour.decorate_arrays(gate, timeout_ms=0)
    answer = flavour.call(fn, mapping({"b": np.ones((2, 3)), "a": np.ones((2, 1))}))
    assert same(answer, np.full((2, 3), 2.0))
    assert gate.batches == [["b", "a"]]


@pytest.mark.libraries
def test_a_tokenizers_output_is_a_call() -> None:
    """Which is a mapping, but no dict."""
    ids, mask = torch.tensor([[3, 4, 9], [5, 9, 9]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    transformers = pytest.importorskip("transformers")
    fn = inference.dynamically(
        lambda features: features["input_ids"] * features["attention_mask"], timeout_ms=0
    )
    encoding = transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})
    assert fn(encoding).tolist() == [[3, 4, 0], [5, 0, 0]]


def test_features_can_be_passed_by_name(flavour: Flavour) -> None:
    """Each by its own; a mapping by the function's own name for it."""

    def weigh(features: dict[str, Any]) -> Any:
        return sum(features.values())

    fn = flavour.decorate_arrays(weigh, timeout_ms=0)
    x = np.ones((2, 3))
    assert same(flavour.call(fn, x=x, y=x), 2 * x)
    assert same(flavour.call(fn, features={"x": x, "y": x}), 2 * x)
    assert same(flavour.call(fn, features=x), x)
    assert same(flavour.call(fn, self=x, args=x), 2 * x)
    for args, named in [((), {}), ((x,), {"y": x}), (({}, {}), {})]:
        with pytest.raises(TypeError, match="weigh takes one mapping of features, or features by name, got"):
            flavour.call(fn, *args, **named)
    with pytest.raises(TypeError, match="takes a mapping of features, such as a dict of arrays, not ndarray"):
        flavour.call(fn, x)
    with pytest.raises(ValueError, match="weigh needs at least one feature, got none"):
        flavour.call(fn, {})


def test_methods_work_and_every_instance_has_its_own_batcher(flavour: Flavour) -> None:
    """Bound, through the class, with features spread, as `async def`, class and static methods."""
    batched_ = partial(flavour.decorate_arrays, timeout_ms=0)

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @batched_
        def scale(self, features: dict[str, Any]) -> Any:
            return features["x"] * self.factor

        @partial(batched_, spread_kwargs=True)
        def add(self, x: Any, y: Any = 0) -> Any:
            return (x + y) * self.factor

        @batched_
        async def later(self, features: dict[str, Any]) -> Any:
            await asyncio.sleep(0)
            return features["x"] * self.factor

        @batched_
        @classmethod
        def of_class(cls, features: dict[str, Any]) -> Any:
            return features["x"] * (cls is Model)

        @batched_
        @staticmethod
        def static(features: dict[str, Any]) -> Any:
            return features["x"]

    two, three = Model(2), Model(3)
    x = np.ones((2, 2), np.float32)
    assert same(flavour.call(two.scale, {"x": x}), 2 * x)
    assert same(flavour.call(three.scale, x=x), 3 * x)
    assert same(flavour.call(two.add, {"x": x, "y": x}), 4 * x)
    assert same(flavour.call(three.add, x=x), 3 * x)
    assert same(flavour.call(three.later, x=x), 3 * x)
    if flavour.in_tasks:
        assert same(flavour.run(Model.scale.acall(two, {"x": x})), 2 * x)
    else:
        assert same(Model.scale(two, {"x": x}), 2 * x)
    for call in (Model.of_class, two.of_class, Model.static, two.static):
        assert same(flavour.call(call, x=x), x)
    assert two.scale.stats.total_accepted == 4
    assert three.scale.stats.total_accepted == 2


def test_spread_features_need_names(flavour: Flavour) -> None:
    """And a function that does not know one says so as Python does."""
    fn = flavour.decorate_arrays(lambda x: x * 2, timeout_ms=0, spread_kwargs=True)
    assert same(flavour.call(fn, {"x": np.ones(2)}), 2 * np.ones(2))
    with pytest.raises(TypeError, match="spread_kwargs=True needs string keys, got 3"):
        flavour.call(fn, {3: np.ones(2)})
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        flavour.call(fn, {"x": np.ones(2), "y": np.ones(2)})


def test_keys_need_not_be_strings(flavour: Flavour) -> None:
    """Anything hashable will do where features are not spread."""
    fn = flavour.decorate_arrays(lambda features: features[0, "a"] + features[None], timeout_ms=0)
    assert same(flavour.call(fn, {(0, "a"): np.ones(2), None: np.ones(2)}), 2 * np.ones(2))


def test_map_takes_one_mapping_per_item(flavour: Flavour) -> None:
    """In order; several share a batch; each may have rows of its own number."""
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, batch_size=16, timeout_ms=0)
    items = [{"x": np.full((number % 4, 2), number)} for number in range(40)]
    answers = flavour.map(fn, items)
    assert all(same(answer, item["x"] * 2) for answer, item in zip(answers, items, strict=True))
    assert fn.stats.total_accepted == sum(len(item["x"]) or 1 for item in items)


def test_a_map_has_one_source(flavour: Flavour) -> None:
    """Several are the columns of a function of several parameters."""
    fn = flavour.decorate_arrays(itself, timeout_ms=0)
    with pytest.raises(TypeError, match="itself takes one mapping of features, so `map` takes one iterable"):
        flavour.map(fn, [{"x": np.ones(1)}], [{"y": np.ones(1)}])


def test_a_malformed_item_of_a_map_fails_at_its_place(flavour: Flavour) -> None:
    """After the answers before it; or in its place, if errors are to be returned."""
    fn = flavour.decorate_arrays(itself, batch_size=8, timeout_ms=0)
    items = [{"x": np.ones(1)}, {"x": np.ones(2)}, {"x": 3}, {"x": np.ones(3)}]
    kept = flavour.map(fn.options(return_exceptions=True), items)
    assert [len(answer) for answer in kept if is_numpy(answer)] == [1, 2, 3]
    assert str(kept[2]).startswith("itself: 'x' must be a numpy array")
    assert type(kept[2]) is TypeError
    if flavour.in_tasks:
        with pytest.raises(TypeError, match="'x' must be a numpy array"):
            flavour.map(fn, items)
        return
    answers = fn.map(items)
    assert [len(next(answers)), len(next(answers))] == [1, 2]
    with pytest.raises(TypeError, match="'x' must be a numpy array"):
        next(answers)


def test_call_options_hold_for_arrays(flavour: Flavour) -> None:
    """Exceptions returned in place of the whole answer, priority, and a deadline behind a busy worker."""
    with company(itself, batch_size=2, flavour=flavour) as there:
        bulk = flavour.start(there.fn.options(priority="bulk"), x=np.zeros((2, 1)))
        first = flavour.start(there.fn.options(priority="interactive"), x=np.ones((2, 1)))
        late = flavour.start(there.fn.options(deadline_ms=0.001), x=np.zeros((2, 1)))
        there.gate.open()
        with pytest.raises(TimeoutError, match="f did not answer within deadline_ms=0.001"):
            late.result(PATIENCE_S)
        bulk.result(PATIENCE_S)
        first.result(PATIENCE_S)
        assert [batch["x"].tolist() for batch in there.batches[:2]] == [[[1], [1]], [[0], [0]]]

    def fail(features: Any) -> Any:
        raise ZeroDivisionError

    fn = flavour.decorate_arrays(fail, timeout_ms=0, batch_size=2)
    answer = flavour.call(fn.options(return_exceptions=True), x=np.ones(5))
    assert isinstance(answer, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        flavour.call(fn, x=np.ones(5))


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def scale(self, features: dict[str, Any]) -> Any:
        return features["x"] * self.factor


class Blocking(Scale):
    scale = inference.dynamically(Scale.scale, timeout_ms=0)


class Awaiting(Scale):
    scale = aio.inference.dynamically(as_async(Scale.scale), timeout_ms=0)


class AwaitingPlain(Scale):
    scale = aio.inference.dynamically(Scale.scale, timeout_ms=0)


SCALES = {"aio": Awaiting, "aio-plain": AwaitingPlain}  # where pickle can find them


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_an_instance_with_arrays_can_be_copied_and_pickled(flavour: Flavour, copied: Any) -> None:
    """The copy has a queue of its own."""
    model = SCALES.get(flavour.name, Blocking)(2)
    flavour.call(model.scale, x=np.ones(1))
    twin = copied(model)
    assert same(flavour.call(twin.scale, x=np.ones(1)), np.full(1, 2.0))
    assert twin.scale.stats.total_accepted == 1


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_a_call_of_no_rows_runs_alone(flavour: Flavour, make: Any) -> None:
    """With no rows; the function answers it; it counts as one item."""
    with company(
        lambda features: {"y": features["x"] * 2}, batch_size=4, unpad_outputs=True, flavour=flavour
    ) as there:
        empty, other, full = there.answers({"x": make((0, 3))}, {"x": make((0, 3))}, {"x": make((2, 3))})
        assert same(empty, {"y": make((0, 3))})
        assert same(other, empty)
        assert same(full, {"y": make((2, 3))})
        assert sorted(len(batch["x"]) for batch in there.batches) == [0, 0, 2]
        assert there.fn.stats.total_accepted == 5


def test_a_call_of_no_rows_fails_alone(flavour: Flavour) -> None:
    """Where the function cannot make anything of it."""
    with company(lambda features: features["x"] - features["x"].max(), flavour=flavour) as there:
        errors = there.errors({"x": np.ones((0, 3))}, {"x": np.ones((2, 3))})
    assert isinstance(errors[0], ValueError)
    assert "zero-size array" in str(errors[0])
    assert errors[1] is None
