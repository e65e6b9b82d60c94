"""Features in, arrays out: what every caller of `batched.inference` may rely on, alone and in company."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batched import BatchError, aio, inference
from tests.kit.flavours import Flavour, as_async
from tests.kit.gate import PATIENCE_S, Gate, until

ROOT = Path(__file__).parent.parent


def copied(features: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.copy() if is_numpy(value) else value.clone() for key, value in features.items()}


def is_numpy(value: Any) -> bool:
    return isinstance(value, np.ndarray)


class Company:
    """Callers whose calls all wait while the worker is held, so that who shares a batch is no accident."""

    def __init__(self, function: Callable[..., Any], flavour: Flavour, **options: Any) -> None:
        def answer(features: dict[Any, Any]) -> Any:
            return features["hold"] if "hold" in features else function(features)

        self.flavour = flavour
        self.gate = Gate(answer, shut=True, note=copied)
        self.fn = flavour.decorate_arrays(self.gate, timeout_ms=0, name="f", **options)
        flavour.start(self.fn, hold=np.zeros(1))
        self.gate.wait_for_batch()

    def futures(self, *calls: Any) -> list[Future[Any]]:
        """Queue all of `calls`, then let the worker go."""
        futures = [self.flavour.start(self.fn, call) for call in calls]
        self.gate.open()
        return futures

    def answers(self, *calls: Any) -> list[Any]:
        """Return the answers to `calls`, which have all waited together."""
        return [future.result(PATIENCE_S) for future in self.futures(*calls)]

    def errors(self, *calls: Any) -> list[Any]:
        """Return the errors that `calls` end with, None for an answer."""
        return [future.exception(PATIENCE_S) for future in self.futures(*calls)]

    @property
    def batches(self) -> list[dict[Any, Any]]:
        """What the function was given, after the call that held the worker."""
        return self.gate.batches[1:]


@contextmanager
def company(
    function: Callable[..., Any], *, flavour: Flavour | None = None, **options: Any
) -> Iterator[Company]:
    """Callers of `function` who share its batches, until the end of the block."""
    there = Company(function, flavour or Flavour(), **options)
    try:
        yield there
    finally:
        there.gate.open()
        there.flavour.close(there.fn)


def itself(features: dict[Any, Any]) -> Any:
    """A function with an output as long as its input."""
    return features["x"]


def same(one: Any, other: Any) -> bool:
    """Whether both are the same arrays, nested alike: type, dtype, shape and every value."""
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return (
            type(one) is type(other)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if type(one) is not type(other) or (one.dtype, tuple(one.shape)) != (other.dtype, tuple(other.shape)):
        return False
    if is_numpy(one):
        return np.array_equal(one, other)
    return bool(torch.equal(one, other))


# -- invisible: the property --------------------------------------------------------------------------------


def tokens_and_sums(features: dict[str, Any]) -> dict[str, Any]:
    """Row-wise and blind to padding: each token as it is, and the sum of those that the mask lets through."""
    x, mask = features["x"], features["mask"]
    there = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
    masked = (
        np.where(there, x, np.zeros((), x.dtype))
        if is_numpy(x)
        else torch.where(there, x, torch.zeros_like(x))
    )
    return {"tokens": x, "sums": masked.sum(1), "weights": (features["weight"] * 2,)}


NUMPY_DTYPES = ["i8", "u1", "?", "f2", "f4", ">f8", ">i2", "c8"]
TORCH_DTYPES = [
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]


@st.composite
def calls_of_many_kinds(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls that may share a batch, and others that may not."""
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES),
                st.lists(st.integers(0, 3), max_size=2).map(tuple),
            ),
            min_size=1,
            max_size=3,
        )
    )
    calls = []
    for number in range(draw(st.integers(1, 8))):
        dtype, trailing = draw(st.sampled_from(kinds))
        lengths = draw(st.lists(st.integers(0, 6), max_size=5))
        ragged = draw(st.booleans()) and lengths
        if not ragged:
            lengths = [max(lengths, default=2)] * len(lengths)
        shapes = [(length, *trailing) for length in lengths]
        rows = [array(dtype, shape, number + 3 * index) for index, shape in enumerate(shapes)]
        masks = [like(row, np.arange(len(row)) % 3 != number % 3) for row in rows]
        weight = array(dtype, (len(rows),), number)
        if ragged:
            calls.append({"x": rows, "mask": masks, "weight": weight})
        else:
            empty = array(dtype, (0, 2, *trailing), 0), like(weight, np.zeros((0, 2), bool))
            x, mask = (rows_of(rows), rows_of(masks)) if rows else empty
            calls.append({"x": x, "mask": mask, "weight": weight})
    return calls


def array(dtype: Any, shape: tuple[int, ...], start: int) -> Any:
    """Return small whole numbers, whose sums are exact in every dtype."""
    values = (np.arange(np.prod(shape, dtype=int)) * 7 + start).reshape(shape) % 5
    return values.astype(dtype) if isinstance(dtype, str) else torch.from_numpy(values).to(dtype)


def like(row: Any, values: Any) -> Any:
    return values if is_numpy(row) else torch.from_numpy(values)


def joined(parts: list[Any]) -> Any:
    # numpy would turn the byte order into the machine's.
    return np.concatenate(parts).astype(parts[0].dtype) if is_numpy(parts[0]) else torch.cat(parts)


def rows_of(arrays: list[Any]) -> Any:
    return joined([row[None] for row in arrays])


def alone(features: dict[str, Any]) -> Any:
    """Return what the function itself makes of a call; if its rows may differ, of each row on its own."""
    if not isinstance(features["x"], list):
        return tokens_and_sums(features)
    rows = [
        tokens_and_sums(
            {
                key: value[index][None] if isinstance(value, list) else value[index : index + 1]
                for key, value in features.items()
            }
        )
        for index in range(len(features["x"]))
    ]
    tokens = [row["tokens"] for row in rows]
    return {
        "tokens": [row[0] for row in tokens] if len({row.shape for row in tokens}) > 1 else joined(tokens),
        "sums": joined([row["sums"] for row in rows]),
        "weights": (features["weight"] * 2,),
    }


# The fixture has no state that one example could leave to the next.
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=calls_of_many_kinds(),
    batch_size=st.integers(1, 9),
    side=st.sampled_from(["left", "right"]),
    pad=st.sampled_from([0, 1, {"x": 1}, {"nobody has it": -3.5}]),
    multiple=st.sampled_from([None, 1, 4]),
    unpad=st.sampled_from([{"tokens": "x"}, {"tokens": "mask"}]),
)
def test_company_is_invisible(  # noqa: PLR0913, PLR0917
    flavour: Flavour, calls: list[Any], batch_size: int, side: Any, pad: Any, multiple: Any, unpad: Any
) -> None:
    """Whoever shares the batches, a caller gets what the function makes of its own rows, to the bit."""
    if pad == 1:
        pad = {"x": 1, "weight": 1}  # but not the mask
    with company(
        tokens_and_sums,
        batch_size=batch_size,
        padding_side=side,
        pad_token=pad,
        pad_to_multiple_of=multiple,
        unpad_outputs=unpad,
        flavour=flavour,
    ) as there:
        answers = there.answers(*calls)
        for call, answer in zip(calls, answers, strict=True):
            assert same(answer, alone(call))
        rows: dict[Any, list[int]] = {}
        for batch in there.batches:
            if len(batch["x"]):
                rows.setdefault(kind(batch), []).append(len(batch["x"]))
        chosen = there.fn.stats.chosen
        for sizes in rows.values():  # of calls that are alike, every batch but the last is full
            assert "length" in chosen or sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert max(sizes) <= batch_size


def kind(batch: dict[str, Any]) -> Any:
    return tuple((key, str(value.dtype), value.ndim, tuple(value.shape[2:])) for key, value in batch.items())


# -- what may be passed -------------------------------------------------------------------------------------


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


def test_a_tokenizers_output_is_a_call() -> None:
    """Which is a mapping, but no dict."""
    transformers = pytest.importorskip("transformers")
    fn = inference.dynamically(
        lambda features: features["input_ids"] * features["attention_mask"], timeout_ms=0
    )
    encoding = transformers.BatchEncoding(
        {
            "input_ids": torch.tensor([[3, 4, 9], [5, 9, 9]]),
            "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]),
        }
    )
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
    with pytest.raises(TypeError, match="spread_kwargs=True needs keys that are strings, got 3"):
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


# -- dtypes, ranks, rows ------------------------------------------------------------------------------------

NUMPY_KINDS = [
    *"?bBhHiIlLqQefdgFDG",
    ">i4",
    ">f8",
    "U5",
    "S3",
    ">U2",
    "M8[s]",
    "m8[ms]",
    "O",
    "V3",
    [("a", ">i4"), ("b", "U3")],
]
TORCH_KINDS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", NUMPY_KINDS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_numpy_dtype_is_kept(dtype: Any, batch_size: int) -> None:
    """What the function sees and what comes back: byte order, units and fields too; padding is its zero."""
    dtype = np.dtype(dtype)
    short, long = np.zeros((2, 1), dtype), np.ones((2, 3), "i1").astype(dtype if dtype.kind != "V" else "i1")
    if dtype.kind == "V":
        long = np.zeros((2, 3), dtype)
    with company(itself, batch_size=batch_size, unpad_outputs=True) as there:
        answers = there.answers({"x": short}, {"x": long}, {"x": list(long)}, {"x": [short[0], long[0]]})
        assert all(batch["x"].dtype == dtype for batch in there.batches)
        assert [answer[0].dtype for answer in answers] == [dtype] * 4
        assert all(map(np.array_equal, answers[:3], [short, long, long]))
        assert all(map(np.array_equal, answers[3], [short[0], long[0]]))
        if batch_size == 8:
            assert np.array_equal(there.batches[0]["x"][0, 1:], np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", TORCH_KINDS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_torch_dtype_is_kept(dtype: Any, batch_size: int) -> None:
    """What the function sees and what comes back."""
    short, long = torch.zeros(2, 1).to(dtype), torch.ones(2, 3).to(dtype)
    with company(itself, batch_size=batch_size, unpad_outputs=True) as there:
        answers = there.answers({"x": short}, {"x": long}, {"x": list(long)}, {"x": [short[0], long[0]]})
        assert all(batch["x"].dtype == dtype for batch in there.batches)
        assert [answer[0].dtype for answer in answers] == [dtype] * 4
        assert all(map(torch.equal, answers[:3], [short, long, long]))
        assert all(map(torch.equal, answers[3], [short[0], long[0]]))


def test_strings_of_other_lengths_make_one_call() -> None:
    """Rows of a list, and outputs of several batches, widen to the longest."""
    with company(itself, batch_size=1) as there:
        answer = there.answers({"x": [np.array("a"), np.array("abc")]})[0]
    assert same(answer, np.array(["a", "abc"]))
    numbers = iter([3, 5, 1])
    fn = inference.dynamically(lambda features: np.array(["x" * next(numbers)]), batch_size=1, timeout_ms=0)
    assert same(fn(x=np.zeros(3)), np.array(["xxx", "xxxxx", "x"]))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (1, 2, 3, 1), (0,), (2, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_of_every_rank_and_of_no_length(make: Any, shape: tuple[int, ...]) -> None:
    """From one scalar per row upwards, as arrays and as lists."""
    block = make((3, *shape))
    with company(itself, batch_size=4) as there:
        answers = there.answers(
            {"x": block}, {"x": list(block)} if is_torch(block) or shape else {"x": block}
        )
        assert all(same(answer, block) for answer in answers)


def is_torch(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def test_a_scalar_per_row_travels_with_tokens(flavour: Flavour) -> None:
    """Features of one call may be of any ranks."""
    with company(
        lambda features: features["x"] * features["w"][:, None], unpad_outputs=True, flavour=flavour
    ) as there:
        short, long = there.answers(
            {"x": np.ones((1, 2)), "w": np.array([2.0])}, {"x": np.ones((2, 3)), "w": np.array([3.0, 4.0])}
        )
    assert same(short, np.full((1, 2), 2.0))
    assert same(long, np.array([[3.0] * 3, [4.0] * 3]))


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


# -- padding ------------------------------------------------------------------------------------------------


def padded(*calls: Any, **options: Any) -> dict[Any, Any]:
    """Return what the function is given of `calls` that share a batch."""
    with company(lambda features: np.zeros(len(next(iter(features.values())))), **options) as there:
        there.answers(*calls)
        assert len(there.batches) == 1
        return there.batches[0]


SHORT, LONG = {"x": np.array([[1, 2]])}, {"x": np.array([[3, 4, 5]])}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, [[1, 2, 0], [3, 4, 5]]),
        ({"pad_token": -100}, [[1, 2, -100], [3, 4, 5]]),
        ({"pad_token": {"x": -100}}, [[1, 2, -100], [3, 4, 5]]),
        ({"pad_tokens": {"x": np.int8(-1)}}, [[1, 2, -1], [3, 4, 5]]),
        ({"pad_tokens": 7.0}, [[1, 2, 7], [3, 4, 5]]),
        ({"pad_token": {"x": torch.tensor(7)}}, [[1, 2, 7], [3, 4, 5]]),
        ({"pad_token": {"y": 9}}, [[1, 2, 0], [3, 4, 5]]),
        ({"padding_side": "left"}, [[0, 1, 2], [3, 4, 5]]),
        ({"padding_side": "left", "pad_token": {"x": 9}}, [[9, 1, 2], [3, 4, 5]]),
        ({"pad_to_multiple_of": 4}, [[1, 2, 0, 0], [3, 4, 5, 0]]),
        ({"pad_to_multiple_of": 3}, [[1, 2, 0], [3, 4, 5]]),
        ({"pad_to_multiple_of": 4, "padding_side": "left"}, [[0, 0, 1, 2], [0, 3, 4, 5]]),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_are_padded_to_the_longest(options: Any, rows: Any, library: str) -> None:
    """By the feature's own number, or one for all, on either side, rounded up if asked."""
    calls = [SHORT, LONG] if library == "numpy" else [{"x": torch.from_numpy(c["x"])} for c in (SHORT, LONG)]
    assert padded(*calls, **options)["x"].tolist() == rows
    ragged = {"x": [call["x"][0] for call in calls]}
    assert padded(ragged, **options)["x"].tolist() == rows
    assert padded(*calls[:1], ragged, **options)["x"].tolist() == [rows[0], *rows]


@pytest.mark.parametrize("value", [-1.5, float("inf"), float("-inf"), float("nan"), 1, True])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.complex64, torch.bfloat16, torch.float32, torch.complex64]
)
def test_floats_are_padded_with_any_number(value: float, dtype: Any) -> None:
    """Infinite ones too, and what is no number."""
    make = torch.zeros if isinstance(dtype, torch.dtype) else np.zeros
    x = padded({"x": [make(1, dtype=dtype), make(2, dtype=dtype)]}, pad_token=value)["x"]
    assert str(complex(x[0, 1]).real) == str(float(value))
    assert x.dtype == dtype


def test_a_plain_number_pads_every_feature_and_a_missing_one_zero() -> None:
    """A feature that `pad_token` does not name is padded with zero, one that a call lacks is no matter."""
    rows = [np.ones(1, "i8"), np.ones(2, "i8")]
    both = padded({"x": rows, "y": rows}, pad_token=5)
    assert (both["x"].tolist(), both["y"].tolist()) == ([[1, 5], [1, 1]], [[1, 5], [1, 1]])
    one = padded({"x": rows, "y": rows}, pad_token={"y": 6, "z": 7})
    assert (one["x"].tolist(), one["y"].tolist()) == ([[1, 0], [1, 1]], [[1, 6], [1, 1]])


def test_strings_are_padded_with_strings() -> None:
    """Empty ones by default."""
    rows = {"x": [np.array(["ab"]), np.array(["cd", "ef"])]}
    assert padded(rows)["x"].tolist() == [["ab", ""], ["cd", "ef"]]
    assert padded(rows, pad_token="-")["x"].tolist() == [["ab", "-"], ["cd", "ef"]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", 300),
        ("u1", -1),
        ("i1", 128),
        ("i8", 0.5),
        ("i8", float("nan")),
        ("i8", 10**400),
        ("f8", 10**400),
        ("f2", 70_000),
        ("f4", 1j),
        ("f4", np.complex64(1j)),
        ("?", 2),
        ("U2", "abc"),
        ("U2", 3),
        ("i8", "a"),
        ("M8[s]", "a"),
        (torch.uint8, 300),
        (torch.int64, 0.5),
        (torch.bool, -100),
        (torch.float16, 70_000),
        (torch.float32, 1j),
        (torch.float32, "a"),
    ],
)
def test_a_number_that_a_dtype_cannot_hold_is_refused_at_the_door(dtype: Any, value: Any) -> None:
    """With the feature, the number and the dtype in the message; nobody else is hurt."""
    bad = torch.zeros(1, 2).to(dtype) if isinstance(dtype, torch.dtype) else np.zeros((1, 2), dtype)
    with company(lambda features: np.zeros(len(*features.values())), pad_token={"x": value}) as there:
        with pytest.raises(ValueError, match=r"f: pad_token for 'x': .* does not fit into ") as caught:
            there.fn.submit(x=bad)
        assert repr(value)[:20] in str(caught.value)
        assert str(bad.dtype) in str(caught.value)
        assert there.errors({"x": bad[:, 0]}, {"y": bad}) == [None, None]


def test_nothing_is_padded_where_nothing_is_ragged() -> None:
    """A feature whose rows are equal stays as it is beside one that is padded."""
    assert padded(SHORT, SHORT)["x"].shape == (2, 2)
    batch = padded(
        {"x": np.ones((1, 2)), "y": np.ones((1, 5))},
        {"x": np.ones((1, 3)), "y": np.ones((1, 5))},
        pad_to_multiple_of={"x": 8},
    )
    assert (batch["x"].shape, batch["y"].shape) == ((2, 8), (2, 5))


@pytest.mark.parametrize("multiple", [4, {"x": 4}, {"x": np.int8(4), "y": 1}])
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_every_length_is_a_multiple(make: Any, multiple: Any) -> None:
    """However many rows there are, none too, and whether they differ: the function sees few shapes."""
    calls: list[list[Any]] = [
        [make((1, 2))],
        [make((3, 2))],
        [make((1, 2)), make((1, 2))],
        [make((2, 5)), make((1, 2))],
        [make((2, 4)), make((1, 4))],
        [[make(3), make(3)]],
        [[make(3), make(2)], make((1, 4))],
        [make((0, 3))],
        [make((2, 3, 2)), make((1, 2, 2))],
        [[make((2, 3)), make((2, 5))]],
        [make((2, 0))],
    ]
    lengths = [4, 4, 4, 8, 4, 4, 4, 4, 4, 4, 0]
    for blocks, length in zip(calls, lengths, strict=True):
        rows = sum(map(len, blocks))
        batch = padded(
            *({"x": block, "y": make(len(block))} for block in blocks), pad_to_multiple_of=multiple
        )
        assert tuple(batch["x"].shape[:2]) == (rows, length)
        assert float(batch["x"].sum()) == sum(float(row.sum()) for block in blocks for row in block)
        assert tuple(batch["y"].shape) == (rows,)
    with company(itself, unpad_outputs=True, pad_to_multiple_of=multiple) as there:
        answers = there.answers(*({"x": make((rows, 3))} for rows in (1, 2, 0)))
        assert [tuple(answer.shape) for answer in answers] == [(1, 3), (2, 3), (0, 3)]
        padding = there.fn.stats.padding
        assert padding.padded - padding.real == 3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_are_padded_along_every_axis_that_is_ragged(make: Any, side: Any) -> None:
    """And each is cut out again, so that pictures of any size come back as they went in."""
    pictures = [make((2, 3, 3)), make((3, 1, 3)), make((2, 2, 3)), make((5, 6, 3))]
    options = {"padding_side": side, "pad_token": -1}
    batch = padded({"x": pictures[:2]}, {"x": pictures[2:]}, **options)["x"]
    assert batch.shape == (4, 5, 6, 3)
    corner = batch[0, :2, :3] if side == "right" else batch[0, -2:, -3:]
    assert same(corner, pictures[0]) or corner.tolist() == pictures[0].tolist()
    assert float(batch.sum()) == sum(float(p.sum()) for p in pictures) - (
        4 * 90 - sum(p.sum() for p in pictures)
    )
    for batch_size in (1, 3, 4):
        with company(itself, unpad_outputs=True, batch_size=batch_size, **options) as there:
            first, second = there.answers({"x": pictures[:2]}, {"x": pictures[2:]})
            assert same(first, pictures[:2])
            assert same(second, pictures[2:])
    with company(lambda f: f["x"].sum(2), unpad_outputs=True, pad_token=0, padding_side=side) as there:
        sums = there.answers({"x": pictures[:2]}, {"x": pictures[2:]})[0]
        assert same(sums, [picture.sum(1) for picture in pictures[:2]])


def test_stats_say_what_padding_costs(flavour: Flavour) -> None:
    """Real and padded elements of all features, and the waste in percent."""
    with company(lambda features: features["x"][:, 0], flavour=flavour) as there:
        nothing = there.fn.stats.padding
        assert (nothing.real, nothing.padded, nothing.waste_percent) == (0, 0, 0.0)
        there.answers(
            {"x": np.ones((1, 2)), "y": np.ones((1, 4))}, {"x": np.ones((2, 4)), "y": np.ones((2, 4))}
        )
        until(lambda: there.fn.stats.total_batches == 2)
        padding = there.fn.stats.padding
        assert (padding.real, padding.padded) == (1 + 2 + 8 + 12, 1 + 12 + 12)
        assert padding.waste_percent == pytest.approx(8.0)
        assert "8.0 % of 25 elements" in str(there.fn.stats)
        for rows, real, padded_ in [
            ([np.ones((1, 2)), np.ones((3, 1))], 5, 12),  # ragged along two axes
            ([np.ones((1, 5)), np.ones((3, 5))], 20, 30),  # along one of two
        ]:
            before = there.fn.stats
            flavour.call(there.fn, x=rows)
            until(lambda: there.fn.stats.total_batches > before.total_batches)
            padding = there.fn.stats.padding
            assert (padding.real - before.padding.real, padding.padded - before.padding.padded) == (
                real,
                padded_,
            )


# -- outputs ------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


class Readable(Mapping[str, Any]):
    """A mapping that cannot be written to."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x * 2,
    "dict": lambda x: {"a": x, "b": x + 1},
    "OrderedDict": lambda x: OrderedDict(b=x, a=x + 1),
    "UserDict": lambda x: UserDict(a=x),
    "list of two": lambda x: [x, x + 1],
    "list of one": lambda x: [x],
    "tuple": lambda x: (x, x[:, 0]),
    "namedtuple": lambda x: Pair(x, x + 1),
    "nested": lambda x: {"a": [x, (x + 1, {"b": x[:, :1]})], "c": None, "d": ()},
    "the same twice": lambda x: [x, x],
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
@pytest.mark.parametrize("batch_size", [2, 3, 16])
def test_outputs_keep_their_structure(flavour: Flavour, structure: str, make: Any, batch_size: int) -> None:
    """Whatever arrays are nested in, from one batch or several; a list of two is a list of two."""
    function = STRUCTURES[structure]
    blocks = [make(6).reshape(2, 3), make(15).reshape(5, 3), make(3).reshape(1, 3)]
    with company(lambda features: function(features["x"]), batch_size=batch_size, flavour=flavour) as there:
        for block, answer in zip(blocks, there.answers(*({"x": block} for block in blocks)), strict=True):
            assert nested_same(answer, function(block))


def nested_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return (
            type(one) is type(other)
            and list(one) == list(other)
            and all(nested_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(nested_same, one, other))
    return one is other or same(one, other)


def test_a_mapping_that_cannot_be_made_again_comes_as_a_dict() -> None:
    """Its values are right all the same, and the function's own object is left as it was."""
    outputs = Readable(a=np.ones((3, 1)))
    fn = inference.dynamically(
        lambda features: outputs if len(features["x"]) == 3 else {}, batch_size=3, timeout_ms=0
    )
    assert same(fn(x=np.zeros(3)), {"a": np.ones((3, 1))})
    proxied = inference.dynamically(lambda features: MappingProxyType({"a": features["x"]}), timeout_ms=0)
    assert same(proxied(x=np.ones(2)), {"a": np.ones(2)})


def test_torchs_own_named_results_keep_their_names() -> None:
    """`max` along an axis returns values and indices."""
    with company(lambda features: features["x"].max(dim=1)) as there:
        one, two = there.answers({"x": torch.tensor([[1, 3]])}, {"x": torch.tensor([[5, 3], [1, 2]])})
    assert (one.values.tolist(), one.indices.tolist()) == ([3], [1])
    assert (two.values.tolist(), two.indices.tolist()) == ([5, 2], [0, 1])


def test_a_models_output_is_one_for_each_caller() -> None:
    """With attributes, keys and positions; what the model left out is left out."""
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def model(features: dict[str, Any]) -> Any:
        x = features["x"]
        return outputs.BaseModelOutputWithPooling(
            last_hidden_state=x[:, :, None].float(),
            pooler_output=x.sum(1),
            hidden_states=(x, x + 1),
            attentions=(),  # as many a model has it that was asked for them in vain
        )

    for batch_size in (1, 8):
        with company(model, batch_size=batch_size, unpad_outputs={"last_hidden_state": "x"}) as there:
            short, long = there.answers({"x": torch.ones(2, 3)}, {"x": torch.ones(1, 3)})
            assert type(short) is outputs.BaseModelOutputWithPooling
            assert short.last_hidden_state.shape == short["last_hidden_state"].shape == (2, 3, 1)
            assert long[1].tolist() == [3.0]
            assert [state.shape for state in long.hidden_states] == [(1, 3), (1, 3)]
            assert list(long) == ["last_hidden_state", "pooler_output", "hidden_states", "attentions"]
            assert long.attentions == ()


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (None, TypeError, "its output must be an array, or a dict, list or tuple of arrays, not NoneType"),
        (3, TypeError, "not int"),
        (np.float64(3), TypeError, "not float64"),
        ("ab", TypeError, "not str"),
        ([1, 2], TypeError, r"its output\[0\] must be an array, .* not int"),
        ([[1], [2]], TypeError, r"its output\[0\]\[0\] must be an array"),
        (
            {"a": np.ones(2), "b": ["x", "y"]},
            TypeError,
            r"its output\['b'\]\[0\] must be an array, .* not str",
        ),
        ([], TypeError, "its output is an empty list"),
        ({}, TypeError, "its output is an empty dict"),
        ({"a": ()}, TypeError, r"f returned no array, but {'a': \(\)}"),
        ({"a": None}, TypeError, "f returned no array, but {'a': None}"),
        (iter([1]), TypeError, "not list_iterator"),
        ({1, 2}, TypeError, "not set"),
        (np.ones(()), BatchError, r"its output has shape \(\), and the batch has 2 rows"),
        (torch.ones(()), BatchError, r"its output has shape \(\)"),
        (
            np.ones(1),
            BatchError,
            r"one row per row of the batch: its output has shape \(1,\), and the batch has 2",
        ),
        (np.ones((3, 2)), BatchError, r"\(3, 2\)"),
        (
            {"a": np.ones(2), "b": (np.ones((0, 2)),)},
            BatchError,
            r"its output\['b'\]\[0\] has shape \(0, 2\)",
        ),
        (np.ma.masked_array([1, 2]), BatchError, "its output cannot be cut into rows: masked arrays"),
        (torch.ones(2, 2).to_sparse(), BatchError, "its output cannot be cut into rows: sparse"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_outputs_that_are_not_one_row_per_row_are_an_error_at_once(
    flavour: Flavour, outputs: Any, error: Any, message: str
) -> None:
    """For every caller of that batch, and for nobody else; the next batch is a new one."""
    answers = iter([outputs])
    with company(lambda features: next(answers, features["x"]), batch_size=2, flavour=flavour) as there:
        one, two, three = there.errors({"x": np.ones((1, 3))}, {"x": np.ones((1, 3))}, {"x": np.ones((1, 3))})
        for caught in (one, two):
            with pytest.raises(error, match=message):
                raise caught
        assert three is None
        assert there.fn.stats.total_failed == 2


def test_rows_from_several_batches_are_joined(flavour: Flavour) -> None:
    """One call of many rows is one answer, in order, whatever the size of a batch."""
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, batch_size=7, timeout_ms=0)
    x = np.arange(200).reshape(100, 2)
    assert same(flavour.call(fn, x=x), x * 2)
    assert fn.stats.total_batches == 15


def test_dtypes_of_several_batches_are_joined_to_one_that_holds_both() -> None:
    """A function whose dtype depends on its batch gets back what numpy or torch make of both."""
    for make, small, large in [(np.ones, np.int32, np.float64), (torch.ones, torch.int32, torch.float16)]:
        dtypes = iter([small, large, small])
        fn = inference.dynamically(
            lambda f: make(len(f["x"]), dtype=next(dtypes)), batch_size=2, timeout_ms=0
        )
        assert same(fn(x=np.zeros(6)), make(6, dtype=large))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda x: {"a": x}, "outputs of different structure for the batches of one call"),
        (
            lambda x: x[:, :1],
            r"rows of shape \(3,\) from one batch and of \(1,\) from another.*differ in more than padding",
        ),
        (lambda x: torch.from_numpy(x), "cannot be joined"),
    ],
)
def test_outputs_of_several_batches_that_cannot_be_joined_fail_their_own_call(
    flavour: Flavour, second: Any, message: str
) -> None:
    """And no other in the same batch."""
    functions = iter([lambda x: x, second])
    with company(lambda features: next(functions)(features["x"]), batch_size=3, flavour=flavour) as there:
        small, large, other = there.errors(
            {"x": np.ones((1, 3))}, {"x": np.ones((4, 3))}, {"x": np.ones((1, 3))}
        )
        assert small is None
        assert other is None
        with pytest.raises(BatchError, match=message):
            raise large


# -- outputs without their padding --------------------------------------------------------------------------


def two_lengths(features: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": features["x"], "labels": features["y"], "all": features["x"].sum(1)}


@pytest.mark.parametrize("unpad", [True, {"tokens": "x", "labels": "y"}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_comes_off_the_outputs(flavour: Flavour, unpad: Any, side: Any) -> None:
    """Of all that are as long as a feature, or of those that are named, as a feature says."""
    calls = [{"x": np.ones((2, 3)), "y": np.ones((2, 5))}, {"x": np.ones((1, 4)), "y": np.ones((1, 6))}]
    with company(two_lengths, unpad_outputs=unpad, padding_side=side, flavour=flavour) as there:
        for call, answer in zip(calls, there.answers(*calls), strict=True):
            assert same(answer, two_lengths(call))


@pytest.mark.parametrize("unpad", [True, {0: "x"}])
def test_a_single_output_is_number_0(unpad: Any) -> None:
    """As the first of a list or tuple is."""
    calls = [{"x": np.ones((2, 3))}, {"x": np.ones((1, 4))}]
    for function in (itself, lambda features: [features["x"], features["x"].sum(1)]):
        with company(function, unpad_outputs=unpad) as there:
            for call, answer in zip(calls, there.answers(*calls), strict=True):
                assert same(answer, function(call))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_ragged_rows_come_back_ragged(flavour: Flavour, make: Any, batch_size: int, side: Any) -> None:
    """As a list of rows, each of its own length; rows that happen to be equal come as an array."""
    ragged, equal = [make(3), make(1), make(0), make(4), make(1)], [make(2), make(2)]
    with company(
        itself, batch_size=batch_size, padding_side=side, unpad_outputs=True, flavour=flavour
    ) as there:
        first, second = there.answers({"x": ragged}, {"x": equal})
        assert same(first, ragged)
        assert same(second, rows_of(equal))


def test_without_it_rows_come_padded_to_the_longest_of_the_call(flavour: Flavour) -> None:
    """In one batch, and where the batches of one call were padded to other lengths."""
    rows = [np.ones(1), np.ones(2), np.ones(3), np.ones(4)]
    for batch_size in (2, 4):
        with company(itself, batch_size=batch_size, flavour=flavour) as there:
            (answer,) = there.answers({"x": rows})
            assert same(answer, np.tri(4))


@pytest.mark.parametrize(
    ("unpad", "message"),
    [
        (
            {"nobody": "x"},
            "unpad_outputs names the output 'nobody', but the function returned 'tokens', 'labels', 'all'",
        ),
        (
            {"tokens": "z"},
            r"says that its output\['tokens'\] is padded as the feature 'z', but the features are 'x', 'y'",
        ),
        (
            {"all": "x"},
            r"its output\['all'\] is padded as the feature 'x', but its shape is \(2,\), and .* \(2, 4\)",
        ),
        ({"tokens": "y"}, r"its shape is \(2, 4\), and that of the feature \(2, 6\)"),
        ({0: "x"}, "names the output 0"),
    ],
)
def test_outputs_that_cannot_be_cut_are_an_error(flavour: Flavour, unpad: Any, message: str) -> None:
    """It says what was named, and what is there."""
    with company(two_lengths, unpad_outputs=unpad, flavour=flavour) as there:
        errors = there.errors(
            {"x": np.ones((1, 3)), "y": np.ones((1, 5))}, {"x": np.ones((1, 4)), "y": np.ones((1, 6))}
        )
        for caught in errors:
            with pytest.raises(BatchError, match=message):
                raise caught


def test_an_output_as_long_as_two_features_needs_to_be_told_whose_padding_it_has(flavour: Flavour) -> None:
    """Only callers to whom it matters fail; a dict of output and feature settles it."""
    calls = [{"x": np.ones((1, 2)), "y": np.ones((1, 3))}, {"x": np.ones((1, 3)), "y": np.ones((1, 3))}]
    with company(itself, unpad_outputs=True, flavour=flavour) as there:
        ambiguous, clear = there.errors(*calls)
        with pytest.raises(
            BatchError, match=r"as long as several features, .* 'x', 'y'; say .*unpad_outputs={output: fe"
        ):
            raise ambiguous
        assert clear is None
    with company(itself, unpad_outputs={0: "x"}, flavour=flavour) as there:
        assert [answer.shape for answer in there.answers(*calls)] == [(1, 2), (1, 3)]


@pytest.mark.parametrize("lengths", [[1, 2, 3, 4], [3, 4, 1, 2]])
def test_an_output_that_is_as_long_as_the_padding_by_chance_is_a_clear_error(lengths: list[int]) -> None:
    """Where one batch of a call shows it and another does not; naming the outputs settles it."""
    rows = {"x": [np.ones(length) for length in lengths]}
    for unpad, error in [(True, True), ({}, False)]:
        with company(lambda f: np.ones((len(f["x"]), 4)), batch_size=2, unpad_outputs=unpad) as there:
            if error:
                with pytest.raises(
                    BatchError, match="by its shape its output was padded in one batch and not in"
                ):
                    there.answers(rows)
            else:
                assert there.answers(rows)[0].shape == (4, 4)


# -- who shares a batch -------------------------------------------------------------------------------------

DISTINCT = {
    "x": {"x": np.ones((2, 3))},
    "another key": {"z": np.ones((2, 3))},
    "a key more": {"x": np.ones((2, 3)), "z": np.ones((2, 3))},
    "another order": {"z": np.ones((2, 3)), "x": np.ones((2, 3))},
    "another dtype": {"x": np.ones((2, 3), "f4")},
    "another byte order": {"x": np.ones((2, 3), ">f8")},
    "another rank": {"x": np.ones((2, 3, 1))},
    "no second axis": {"x": np.ones(2)},
    "another trailing shape": {"x": np.ones((2, 3, 2))},
    "torch": {"x": torch.ones(2, 3).double()},
    "another torch dtype": {"x": torch.ones(2, 3)},
    "another device": {"x": torch.ones(2, 3, device="meta")},
    "grad": {"x": torch.ones(2, 3, requires_grad=True)},
    "strings": {"x": np.full((2, 3), "a")},
    "longer strings": {"x": np.full((2, 3), "ab")},
    "no rows": {"x": np.ones((0, 3))},
}


def test_calls_of_different_signature_never_share_a_batch(flavour: Flavour) -> None:
    """Keys, order, dtype, rank, trailing shape, library, device: each has batches of its own."""
    with company(lambda features: list(features.values())[-1], batch_size=64, flavour=flavour) as there:
        calls = [*DISTINCT.values()] * 2
        answers = there.answers(*calls)
        for call, answer in zip(calls, answers, strict=True):
            (*_, last) = call.values()
            assert (type(answer), answer.dtype, tuple(answer.shape)) == (
                type(last),
                last.dtype,
                tuple(last.shape),
            )
        assert len(there.batches) == len(DISTINCT) + 1  # calls of no rows run each on its own
        assert len({signature(batch) for batch in there.batches}) == len(DISTINCT)


def signature(batch: dict[str, Any]) -> Any:
    return tuple(
        (
            key,
            str(x.dtype),
            str(getattr(x, "device", "")),
            getattr(x, "requires_grad", 0),
            x.shape[2:],
            x.ndim,
            not len(x),
        )
        for key, x in batch.items()
    )


@pytest.mark.parametrize(
    "bad", [name for name in DISTINCT if name not in {"x", "another byte order", "grad"}]
)
def test_calls_of_different_signature_never_fail_one_another(flavour: Flavour, bad: str) -> None:
    """A function that cannot do with one kind fails only those that bring it."""

    def function(features: dict[str, Any]) -> Any:
        if signature(features) == signature(DISTINCT[bad]):
            raise ZeroDivisionError
        return features["x"]

    with company(function, batch_size=64, flavour=flavour) as there:
        good, failed, another = there.errors(DISTINCT["x"], DISTINCT[bad], DISTINCT["x"])
        assert (good, another) == (None, None)
        assert isinstance(failed, ZeroDivisionError)
        assert len(there.batches) == 2


def test_lengths_keep_nobody_apart(flavour: Flavour) -> None:
    """The second axis, arrays or lists: all of these are one batch."""
    calls = [
        {"x": np.ones((1, 3))},
        {"x": np.ones((2, 0))},
        {"x": [np.ones(1), np.ones(2)]},
        {"x": [np.ones(4)]},
    ]
    with company(itself, flavour=flavour) as there:
        there.answers(*calls)
        assert [batch["x"].shape for batch in there.batches] == [(6, 4)]


def test_calls_may_be_grouped_further(flavour: Flavour) -> None:
    """`group_by` gets the features as they were passed; several batches are joined and cut as ever."""
    with company(
        itself,
        batch_size=2,
        unpad_outputs={0: "x"},
        group_by=lambda features: "x" in features and features["x"].shape[1] > 4,
        flavour=flavour,
    ) as there:
        calls = [{"x": np.ones((rows, length))} for rows, length in [(1, 2), (3, 9), (1, 3), (2, 8)]]
        for call, answer in zip(calls, there.answers(*calls), strict=True):
            assert same(answer, call["x"])
        assert [batch["x"].shape for batch in there.batches] == [(2, 3), (2, 9), (2, 9), (1, 8)]


MALFORMED = [
    (
        {"x": np.ones(2), "y": np.ones((3, 1))},
        ValueError,
        r"as many rows, got 'x': \(2,\) float64, 'y': \(3, 1\) float64",
    ),
    (
        {"x": [np.ones(2)], "y": np.ones(2)},
        ValueError,
        r"got 'x': a list of \(2,\) float64, 'y': \(2,\) float64",
    ),
    (
        {"x": np.ones(2), "y": 3},
        TypeError,
        "'y' must be a numpy array, a torch tensor or a list of either, got int",
    ),
    (
        {"x": [1, 2]},
        TypeError,
        "'x' must be .* got a list of int, int: a list must hold arrays of one library",
    ),
    ({"x": []}, TypeError, "'x' must be .* got an empty list"),
    ({"x": (np.ones(2),)}, TypeError, "got tuple: convert it first"),
    ({"x": np.ones(())}, TypeError, r"got \(\) float64: it has no axis of rows"),
    ({"x": torch.ones(())}, TypeError, r"got \(\) torch.float32: it has no axis of rows"),
    ({"x": np.ma.masked_array([1])}, TypeError, "masked arrays would lose their mask"),
    ({"x": torch.ones(2, 2).to_sparse()}, TypeError, "sparse and nested tensors are not dense"),
    ({"x": [np.ones(2), torch.ones(3)]}, TypeError, "a list must hold arrays of one library"),
    (
        {"x": [np.ones(2), np.ones(3, "f4")]},
        ValueError,
        r"rows of 'x' must be alike in dtype, .* got \(2,\) float64, \(3,\) f",
    ),
    (
        {"x": [np.ones(2), np.ones((3, 1))]},
        ValueError,
        r"alike in dtype, device and rank, got \(2,\) float64, \(3, 1\)",
    ),
    ({"x": [torch.ones(2), torch.ones(2, device="meta")]}, ValueError, "alike in dtype, device and rank"),
    ({"x": None}, TypeError, "got NoneType: it has no rows, so leave it out"),
    ({"x": np.ones(1), "modality": "text"}, TypeError, "'modality' must be .* got str: it has no rows"),
]


@pytest.mark.parametrize(("call", "error", "message"), MALFORMED)
def test_a_malformed_call_fails_alone(flavour: Flavour, call: Any, error: Any, message: str) -> None:
    """At the door, with the key and what it held; whoever waits for the same batch is not touched."""
    with company(itself, flavour=flavour) as there:
        future = flavour.start(there.fn, x=np.ones((1, 2)))
        with pytest.raises(error, match=f"^f: .*{message}"):
            flavour.call(there.fn, call)
        there.gate.open()
        assert same(future.result(PATIENCE_S), np.ones((1, 2)))
        assert there.fn.stats.total_failed == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused() -> None:
    """Although it cannot even tell its shape."""
    fn = inference.dynamically(itself, timeout_ms=0)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match="'x' must be .* got Tensor: sparse and nested tensors are not dense"):
        fn(x=nested)


def test_a_mapping_that_breaks_fails_its_caller_alone(flavour: Flavour) -> None:
    """Whatever it raises."""

    class Broken(Readable):
        def __getitem__(self, key: str) -> Any:
            raise OSError("disk")

    fn = flavour.decorate_arrays(itself, timeout_ms=0)
    with pytest.raises(OSError, match="disk"):
        flavour.call(fn, Broken(x=1))
    assert same(flavour.call(fn, x=np.ones(1)), np.ones(1))
    [kept] = flavour.map(fn.options(return_exceptions=True), [Broken(x=1)])
    assert isinstance(kept, OSError)


# -- whose memory it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_function_may_change_its_input(flavour: Flavour, make: Any, rows: int) -> None:
    """It is a new array, whether or not anything was joined or padded."""

    def spoil(features: dict[str, Any]) -> Any:
        features["x"] += 1
        return features["x"]

    blocks = [make((rows, 3)), [*make((rows, 3))], make((1, 3))]
    for calls in ([blocks[0]], [blocks[1]], blocks, [*blocks, make((1, 4))]):
        with company(spoil, batch_size=4, unpad_outputs=True, flavour=flavour) as there:
            there.answers(*({"x": block} for block in calls))
    assert all(float(sum(row.sum() for row in block)) == 0 for block in blocks)


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_a_caller_may_use_its_arrays_again_after_submit_and_map(make: Any) -> None:
    """What it puts in them then is not what the function sees."""
    x, row = make((1, 3)), make(3)
    with company(itself) as there:
        future, listed = there.fn.submit(x=x), there.fn.submit(x=[row, make(1)])
        x += 1
        row += 1
        there.gate.open()
        assert float(future.result(PATIENCE_S).sum() + listed.result(PATIENCE_S).sum()) == 0

        def source() -> Iterator[Any]:
            for number in range(20):
                x[:] = number
                yield {"x": x}

        assert [float(answer[0, 0]) for answer in there.fn.map(source())] == list(range(20))


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("unpad", [False, True])
def test_results_stay_right_when_the_function_returns_the_same_buffer_every_time(
    flavour: Flavour, make: Any, batch_size: int, unpad: bool
) -> None:
    """And when callers write into their own."""
    buffer = make((16, 3))

    def reuse(features: dict[str, Any]) -> Any:
        rows, length = features["x"].shape
        part = buffer[:rows, :length]
        part[:] = features["x"]
        return {"a": part, "b": part}

    blocks = [make((rows, 3)) + number for number, rows in enumerate([1, 3, 2, 1])]
    if unpad:
        blocks.append([make(length) + length for length in (1, 3, 2)])
    with company(reuse, batch_size=batch_size, unpad_outputs=unpad, flavour=flavour) as there:
        answers = there.answers(*({"x": block} for block in blocks))
        buffer[:] = -1
        for answer in answers:
            for row in answer["b"]:
                row[:] = -2
        assert all(same(answer["a"], block) for answer, block in zip(answers, blocks, strict=True))


def owned_bytes(result: Any) -> int:
    """Return how much memory a result keeps alive."""
    if isinstance(result, list):
        return sum(map(owned_bytes, result))
    if is_numpy(result):
        assert result.base is None
        return int(result.nbytes)
    return int(result.untyped_storage().nbytes())


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_result_keeps_no_more_than_itself(flavour: Flavour, make: Any, rows: int) -> None:
    """A caller of one row does not keep the batch of a thousand; whole, cut or nested."""
    features = {"x": make((1000, 8))}
    for function in (itself, lambda f: f["x"][:, :, None] + make((1, 1, 2)), lambda f: [f["x"], f["x"]]):
        for options in ({}, {"unpad_outputs": True}):
            with company(function, batch_size=2000, **options, flavour=flavour) as there:
                mine = there.answers({"x": make((rows, 4))}, features, {"x": [make(2), make(3)]})
                assert len(there.batches) == 1
                assert owned_bytes([mine[0], mine[2]]) < 4000
    with company(itself, batch_size=2, flavour=flavour) as there:
        assert owned_bytes(there.answers({"x": make((5, 4))})[0]) <= 5 * 4 * 8


def test_an_idle_batcher_keeps_nobodys_arrays() -> None:
    """Not the features, not the batch, not the results."""
    x = np.ones((4, 4))
    outputs: list[weakref.ref[Any]] = []

    def function(features: dict[str, Any]) -> Any:
        outputs.append(weakref.ref(features["x"]))
        return features["x"]

    fn = inference.dynamically(function, batch_size=2, timeout_ms=0)
    reference = weakref.ref(x)
    fn(x=x)
    fn.submit(x=x).result(PATIENCE_S)
    list(fn.map([{"x": x}]))
    until(lambda: fn._batcher.batcher.inbox.wake_after == 1)
    del x
    gc.collect()
    assert reference() is None
    assert [output() for output in outputs] == [None] * len(outputs)


# -- odd arrays ---------------------------------------------------------------------------------------------

ODD: dict[str, Callable[[], Any]] = {
    "broadcast": lambda: np.broadcast_to(np.arange(3), (2, 3)),
    "negative strides": lambda: np.arange(6).reshape(2, 3)[::-1, ::-1],
    "transposed": lambda: np.arange(6).reshape(3, 2).T,
    "read-only": lambda: np.frombuffer(b"abcdef", "u1").reshape(2, 3),
    "unaligned": lambda: np.frombuffer(b"x" + bytes(range(24)), "u1")[1:].view("i4").reshape(2, 3),
    "expanded": lambda: torch.arange(3).expand(2, 3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "conjugate": lambda: torch.tensor([[1 + 2j, 3j, 1]] * 2).conj(),
    "negative": lambda: torch.tensor([[1 + 2j, 3j, 1]] * 2).conj().imag,
    "strided": lambda: torch.arange(12).reshape(2, 6)[:, ::2],
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_arrays_are_arrays(flavour: Flavour, odd: str) -> None:
    """Views of all kinds, alone, joined and padded; the function may write into what it gets."""

    def add(features: dict[str, Any]) -> Any:
        x = features["x"]
        assert is_torch(x) or (x.flags.writeable and x.flags.c_contiguous)
        with torch.no_grad():
            x += 1
        return x

    x = ODD[odd]()
    want = x + 1 if is_numpy(x) else (x.detach() + 1).resolve_conj()
    for calls in ([x], [x, x], [x, x[:, :2]], [list(x)]):
        with company(add, unpad_outputs=True, flavour=flavour) as there:
            answer = there.answers(*({"x": call} for call in calls))[0]
            assert same(answer.detach() if is_torch(answer) else answer, want)
    assert (x + 1).tolist() == want.tolist()


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("company_", [False, True])
def test_a_subclass_is_its_plain_array_alone_and_in_company(tmp_path: Path, company_: bool) -> None:
    """What a matrix, record array or memory map adds is lost, but never for reasons of company."""
    memmap = np.memmap(tmp_path / "x", shape=(2, 2), dtype="f4", mode="w+")
    records = np.rec.array([[(1,), (2,)]], dtype=[("a", "i4")])
    for odd in (memmap, records, np.matrix([[1, 2], [3, 4]])):
        with company(
            lambda features: np.full(len(features["x"]), type(features["x"]) is np.ndarray)
        ) as there:
            answers = there.answers(*[{"x": odd}] * (2 if company_ else 1))
            assert all(answer.all() for answer in answers)


def test_the_memory_format_of_tensors_is_kept() -> None:
    """Alone and joined."""
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for calls in ([x], [x, x]):
        with company(lambda features: features["x"][:, 0, 0, 0]) as there:
            there.answers(*({"x": call} for call in calls))
            assert there.batches[0]["x"].is_contiguous(memory_format=torch.channels_last)


def test_tensors_without_data_go_through() -> None:
    """On the meta device nothing can be looked at, so nothing is."""
    x = torch.ones(2, 3, device="meta")
    with company(lambda features: {"y": features["x"] * 2}, batch_size=3, unpad_outputs=True) as there:
        for answer in there.answers({"x": x}, {"x": x[:, :2]}, {"x": list(x)}):
            assert answer["y"].device.type == "meta"


# -- torch modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("unpad", [False, True])
def test_results_are_what_the_function_made_under_its_mode(
    flavour: Flavour, batch_size: int, unpad: bool
) -> None:
    """Inference tensors, tensors with grad and plain ones; whole, in parts, cut."""
    weight = torch.nn.Parameter(torch.ones(3))
    modes: list[tuple[Any, bool, bool]] = [
        (torch.inference_mode(), True, False),
        (torch.no_grad(), False, False),
        (torch.enable_grad(), False, True),
    ]
    for mode, inference_, grad in modes:
        with company(
            mode(lambda f: f["x"] * weight), batch_size=batch_size, unpad_outputs=unpad, flavour=flavour
        ) as there:
            for answer in there.answers({"x": torch.ones(3, 3)}, {"x": torch.ones(1, 3)}):
                assert (answer.is_inference(), answer.requires_grad) == (inference_, grad)
                assert answer.tolist() == [[1.0] * 3] * len(answer)


@pytest.mark.parametrize("others", [0, 1])
def test_inference_tensors_may_go_into_a_function_with_grad(others: int) -> None:
    """The function gets a normal tensor of them, alone as in company."""
    layer = torch.nn.Linear(3, 2)
    with torch.inference_mode():
        x = torch.ones(2, 3)
    with company(lambda features: layer(features["x"])) as there:
        for answer in there.answers(*[{"x": x}] * (1 + others)):
            assert answer.requires_grad
    with company(itself) as there, torch.inference_mode():
        future = there.fn.submit(x=x)
        there.gate.open()
        assert future.result(PATIENCE_S).tolist() == x.tolist()


def test_an_input_that_needs_grad_gets_it_and_gives_it_to_nobody_else(flavour: Flavour) -> None:
    """Its caller can go backward; who shares the batcher has a plain tensor, as ever."""
    x, plain = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    for batch_size in (1, 8):
        with company(
            lambda features: features["x"] ** 2, batch_size=batch_size, unpad_outputs=True, flavour=flavour
        ) as there:
            graded, other, ragged = there.answers({"x": x}, {"x": plain}, {"x": [x[0], plain[0, :2]]})
        assert graded.requires_grad
        assert not other.requires_grad
        assert all(row.requires_grad for row in ragged)
        x.grad = None
        graded.sum().backward()
        assert x.grad.tolist() == [[2.0] * 3] * 2
    assert not plain.requires_grad


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"pad_token": None},
            TypeError,
            "pad_token must be a number, or a dict of a number per feature, got None",
        ),
        ({"pad_token": [1]}, TypeError, "pad_token must be a number"),
        ({"pad_token": {"x": None}}, TypeError, "pad_token must be a number"),
        ({"pad_token": {"x": np.ones(2)}}, TypeError, "pad_token must be a number"),
        ({"pad_token": 1, "pad_tokens": 1}, TypeError, "pad_token was given twice, as pad_tokens too"),
        ({"padding_side": "middle"}, ValueError, "padding_side must be 'right' or 'left', got 'middle'"),
        ({"pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of must be at least 1, got 0"),
        ({"pad_to_multiple_of": 1.5}, TypeError, "pad_to_multiple_of must be an int, got 1.5"),
        (
            {"pad_to_multiple_of": {"x": 0}},
            ValueError,
            r"pad_to_multiple_of\['x'\] must be at least 1, got 0",
        ),
        *(
            ({"unpad_outputs": value}, TypeError, "True, False, or a dict .* as {'logits': 'input_ids'}")
            for value in (1.5, None, 0, "logits", ["logits"], (0,), {"logits"})
        ),
        ({"spread_kwargs": 1}, TypeError, "spread_kwargs must be True or False, got 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"padding": 0}, TypeError, "no option 'padding'.*; it has batch_size, .*, spread_kwargs"),
    ],
)
def test_a_senseless_option_is_refused_at_decoration(options: Any, error: Any, message: str) -> None:
    """In every form of the decorator, before any function is called."""
    with pytest.raises(error, match=message):
        inference.dynamically(**options)
    with pytest.raises(error, match=message):
        inference.dynamically(itself, **options)


def test_options_are_copied() -> None:
    """What becomes of the dict afterwards changes nothing."""
    pad: dict[str, Any] = {"x": 7}
    unpad: dict[str, Any] = {}
    fn = inference.dynamically(itself, timeout_ms=0, pad_token=pad, unpad_outputs=unpad)
    pad["x"], unpad["nobody"] = None, "x"
    assert fn(x=[np.ones(1), np.ones(2)]).tolist() == [[1, 7], [1, 1]]


# -- libraries that are not there ---------------------------------------------------------------------------

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from batched import inference
assert not {"numpy", "torch"} & set(sys.modules)
"""


def run_without(library: str, script: str) -> None:
    """Run `script` in a process where `library` cannot be imported."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"BLOCKED = {library!r}\n{BLOCKED}" + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_numpy_works_without_torch() -> None:
    """And neither is imported by the package itself."""
    run_without(
        "torch",
        """
        import numpy as np
        fn = inference.dynamically(lambda f: {"y": f["x"] * 2}, 2, 0, unpad_outputs=True)
        rows = [np.ones(1), np.ones(2), np.ones(3)]
        assert [row.tolist() for row in fn(x=rows)["y"]] == [[2], [2, 2], [2, 2, 2]]
        assert fn(x=np.ones((3, 2)))["y"].tolist() == [[2, 2]] * 3
        try:
            fn(x=[1])
        except TypeError as error:
            assert "'x' must be" in str(error)
        """,
    )


def test_torch_works_without_numpy() -> None:
    """Padded, joined and cut."""
    run_without(
        "numpy",
        """
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
        fn = inference.dynamically(lambda f: {"y": f["x"] * 2}, 2, 0, unpad_outputs=True)
        rows = [torch.ones(1), torch.ones(2), torch.ones(3)]
        assert [row.tolist() for row in fn(x=rows)["y"]] == [[2], [2, 2], [2, 2, 2]]
        assert fn(x=torch.ones(3, 2))["y"].tolist() == [[2, 2]] * 3
        assert "numpy" not in sys.modules
        """,
    )


def test_keys_that_cannot_be_compared_with_others_are_keys(flavour: Flavour) -> None:
    """A call is compared with the last one, and that is nobody's business."""

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return other.name == "key"  # type: ignore[attr-defined]

        name = "key"

    with company(lambda features: next(iter(features.values())), flavour=flavour) as there:
        for key in ("a", Key(), "a", Key()):
            assert there.answers({key: np.ones((2, 3))})[0].shape == (2, 3)
