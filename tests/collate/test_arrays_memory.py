"""Which memory features and results are in, and for how long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from batched import inference
from tests.kit.company import company, is_numpy, itself, same
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until
from tests.kit.kept import batchers
from tests.kit.optional import torch


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


def test_an_idle_batcher_keeps_no_arrays() -> None:
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
    (batcher,) = batchers(fn)
    until(lambda: batcher.wake_after == 1)
    del x
    gc.collect()
    assert reference() is None
    assert [output() for output in outputs] == [None] * len(outputs)
