"""`warm_up`: each shape runs once where batches run, and leaves no trace in figures and answers."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import batched
from batched import ClosedError
from tests.kit.culprits import Bad
from tests.kit.flavours import STREAMING, Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of


def warm(flavour: Flavour, fn: Any, *example: Any, **named: Any) -> None:
    """Warm `fn` up, as callers of this flavour do."""
    if flavour.in_tasks:
        flavour.run(fn.awarm_up(*example, **named))  # type: ignore[attr-defined]
    else:
        fn.warm_up(*example, **named)


def test_each_size_runs_once_and_counts_nowhere(flavour: Flavour) -> None:
    gate = Gate()
    fn = flavour.decorate(gate, batch_sizes=(1, 2, 4))
    assert fn.shapes() == [1, 2, 4]
    told: list[tuple[int, int]] = []
    warm(flavour, fn, "a", progress=lambda done, total: told.append((done, total)))
    assert gate.batches == [["a"], ["a"] * 2, ["a"] * 4]
    assert told == [(1, 3), (2, 3), (3, 3)]
    stats = fn.stats
    assert (stats.total_accepted, stats.total_processed, stats.total_batches, stats.total_copies) == (0,) * 4
    assert (stats.running, stats.running_items, stats.learned) == ((), 0, fn.stats.learned)
    assert flavour.call(fn, "b") == "b"
    assert fn.stats.total_batches == 1


def test_an_error_of_the_function_comes_to_the_caller_and_ends_it(flavour: Flavour) -> None:
    def picky(items: list[str]) -> list[str]:
        if len(items) == 2:
            raise Bad("two")
        return items

    gate = Gate(picky, note=len)
    fn = flavour.decorate(gate, batch_sizes=(1, 2, 4))
    with pytest.raises(Bad, match="two"):
        warm(flavour, fn, "a")
    assert gate.batches == [1, 2]
    assert (fn.stats.total_failed, fn.stats.total_divided) == (0, 0)
    assert flavour.call(fn, "b") == "b"


def test_what_is_no_function_is_refused_as_progress_before_anything_runs(flavour: Flavour) -> None:
    async def progress(done: int, total: int) -> None: ...

    gate = Gate()
    fn = flavour.decorate(gate, batch_sizes=(1, 2))
    for given, why in (
        (3, "a function of two numbers, got 3"),
        (lambda done: done, "a function of two numbers, got <function"),
        (progress, "a plain function, not `async def`"),
    ):
        with pytest.raises(TypeError, match=f"progress must be {why}"):
            warm(flavour, fn, "a", progress=given)
    assert gate.batches == []


def test_an_error_of_progress_ends_it(flavour: Flavour) -> None:
    gate = Gate(note=len)
    fn = flavour.decorate(gate, batch_sizes=(1, 2, 4))

    def progress(done: int, total: int) -> None:
        raise Bad(f"{done} of {total}")

    with pytest.raises(Bad, match="1 of 3"):
        warm(flavour, fn, "a", progress=progress)
    assert gate.batches == [1]


def test_it_shares_no_batch_with_calls(flavour: Flavour) -> None:
    """Calls that come meanwhile run between its batches."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_sizes=(2, 4), timeout_ms=0)
    failure: list[BaseException] = []

    def work() -> None:
        try:
            warm(flavour, fn, "warm")
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    gate.wait_for_batch()
    future = flavour.start(fn, "call")
    gate.open()
    assert future.result(PATIENCE_S) == "call"
    thread.join(PATIENCE_S)
    assert not failure
    assert sorted(gate.batches) == [["call"] * 2, ["warm"] * 2, ["warm"] * 4]


def test_a_cache_neither_answers_nor_hears_of_it(flavour: Flavour) -> None:
    cache = {"a": "known"}
    gate = Gate(note=len)
    fn = flavour.decorate(gate, batch_sizes=(1, 2), cache=cache)
    warm(flavour, fn, "a")
    warm(flavour, fn, "b")
    assert gate.batches == [1, 2, 1, 2]
    assert cache == {"a": "known"}


def test_columns(flavour: Flavour) -> None:
    seen = []

    def pair(left: list[int], right: list[int]) -> list[tuple[int, int]]:
        seen.append((left, right))
        return list(zip(left, right, strict=True))

    fn = flavour.decorate(pair, batch_sizes=(1, 2), group_by=lambda left, right: left, length=lambda *_: 1)
    warm(flavour, fn, 1, right=2)
    assert seen == [([1], [2]), ([1, 1], [2, 2])]


def test_a_method(flavour: Flavour) -> None:
    class Model:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def run(self, items: list[str]) -> list[str]:
            self.sizes.append(len(items))
            return items

        embed = flavour.decorate(run, batch_sizes=(1, 3))

    model = Model()
    warm(flavour, model.embed, "a")
    assert model.sizes == [1, 3]
    with pytest.raises(AttributeError, match="instance"):
        Model.embed.awarm_up("a")


@pytest.mark.parametrize("kind", STREAMING)
def test_a_stream_runs_to_its_end(kind: type[Flavour]) -> None:
    seen = []

    def count(items: list[int]) -> Any:
        for step in range(3):
            seen.append(len(items))
            yield [(item, step) for item in items]

    flavour = kind()
    with flavour.running():
        fn = flavour.decorate(count, batch_sizes=(1, 2), max_pieces=1)
        warm(flavour, fn, 7)
        assert seen == [1, 1, 1, 2, 2, 2]
        assert fn.stats.total_batches == 0


class Piece:
    """What can be referred to weakly."""


@pytest.mark.parametrize("kind", STREAMING)
def test_no_piece_of_a_warm_up_is_kept(kind: type[Flavour]) -> None:
    """But the last one, perhaps, until the next has come."""
    there: weakref.WeakSet[Piece] = weakref.WeakSet()

    def make(_: list[int]) -> Any:
        for _ in range(3):
            yield [piece := Piece()]
            there.add(piece)
            del piece
        gc.collect()
        until(lambda: len(there) <= 1)  # a thread of asyncio's executor may hold one a moment longer

    flavour = kind()
    with flavour.running():
        warm(flavour, flavour.decorate(make, batch_sizes=(1,)), 7)


def test_arrays_are_cut_and_repeated_to_each_length(flavour: Flavour) -> None:
    """Features that are as long as each other in the example are so in each batch."""
    seen = []

    def total(features: dict[str, Any]) -> Any:
        seen.append({key: array.shape for key, array in features.items()})
        assert features["ids"].dtype == np.int32
        assert set(features["ids"].ravel()) <= {1, 2, 3}
        return features["ids"].sum(axis=1)

    lengths = {"ids": (2, 5), "mask": (2, 5), "labels": (1, 2)}
    fn = flavour.decorate_arrays(total, batch_sizes=(1, 2), pad_to_lengths=lengths, max_batch_length=5)
    example = {
        "ids": np.array([[1, 2, 3], [4, 5, 6]], np.int32),
        "mask": np.ones((2, 3)),
        "labels": [np.array([7]), np.array([8, 9])],
        "image": np.zeros((2, 3, 4)),
    }
    warm(flavour, fn, example)
    told = {(shape["ids"], shape["labels"]) for shape in seen}
    assert told == {((1, 2), (1, 1)), ((1, 2), (1, 2)), ((1, 5), (1, 1)), ((1, 5), (1, 2)),
                    ((2, 2), (2, 1)), ((2, 2), (2, 2))}  # fmt: skip
    assert len(seen) == 6
    assert all(shape["ids"] == shape["mask"] for shape in seen)
    assert {shape["image"][1:] for shape in seen} == {(3, 4)}
    assert fn.shapes() == {
        "ids": [(1, 2), (1, 5), (2, 2)],
        "mask": [(1, 2), (1, 5), (2, 2)],
        "labels": [(1, 1), (1, 2), (2, 1), (2, 2)],
    }
    assert fn.stats.total_accepted == 0


def test_arrays_of_which_none_is_padded_have_sizes_only(flavour: Flavour) -> None:
    seen = []

    def total(features: dict[str, Any]) -> Any:
        seen.append(features["image"].shape)
        return features["image"].sum(axis=(1, 2))

    fn = flavour.decorate_arrays(total, batch_sizes=(1, 2), pad_to_lengths={})
    assert fn.shapes() == [1, 2]
    warm(flavour, fn, image=np.ones((1, 3, 4)))
    assert seen == [(1, 3, 4), (2, 3, 4)]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, "size up to batch_size=64: set batch_sizes"),
        ({"batch_sizes": (1, 2)}, "any length: set pad_to_lengths"),
        ({"batch_sizes": (1, 2), "pad_to_multiple_of": 8}, "pad_to_multiple_of=8 has no longest one"),
    ],
)
def test_without_an_end_of_shapes_it_is_said_what_is_missing(
    flavour: Flavour, options: Any, missing: str
) -> None:
    fn = flavour.decorate_arrays(lambda features: features["ids"], **options)
    for ask in (fn.shapes, lambda: warm(flavour, fn, {"ids": np.ones((1, 2))})):
        with pytest.raises(ValueError, match=missing):
            ask()


def test_an_example_must_be_one_that_can_run_several_times(flavour: Flavour) -> None:
    fn = flavour.decorate(Gate(), batch_sizes=(1, 2))
    with pytest.raises(TypeError, match="would use up the example"):
        warm(flavour, fn, iter([1]))
    arrays = flavour.decorate_arrays(Gate(), batch_sizes=(1, 2), pad_to_lengths=(4,))
    with pytest.raises(ValueError, match="no row to copy"):
        warm(flavour, arrays, ids=np.ones((0, 2)))
    with pytest.raises(ValueError, match="row of length 5"):
        warm(flavour, arrays, ids=np.ones((1, 5)))


def test_after_the_end_it_is_refused(flavour: Flavour) -> None:
    fn = flavour.decorate(Gate(), batch_sizes=(1, 2))
    flavour.close(fn)
    with pytest.raises(ClosedError):
        warm(flavour, fn, "a")


def test_each_worker_runs_each_size_once() -> None:
    """The threads are those that run batches."""
    seen: list[tuple[int, int]] = []

    @batched.dynamically(batch_sizes=(1, 2, 4), max_concurrent_batches=3)
    def embed(items: list[str]) -> list[str]:
        seen.append((threading.get_ident(), len(items)))
        return items

    embed.warm_up("a")
    workers = {ident for ident, _ in seen}
    assert len(workers) == 3
    assert sorted(seen) == sorted((ident, size) for ident in workers for size in (1, 2, 4))
    assert threading.get_ident() not in workers
    embed("b")
    assert {ident for ident, _ in seen} == workers
    embed.shutdown()


@pytest.mark.parametrize("pool", [False, True])
def test_a_shutdown_that_cancels_runs_no_batch_of_it_that_waits(pool: bool) -> None:
    gate = Gate(shut=True)
    options: dict[str, Any] = {"workers": batched.Workers(1)} if pool else {}
    fn = batched.dynamically(gate, batch_sizes=(1, 2, 4), timeout_ms=0, **options)
    call = fn.submit("a")
    gate.wait_for_batch()
    with ThreadPoolExecutor(1) as callers:
        warms = callers.submit(fn.warm_up, "b")
        until(lambda: driver_of(fn).dispatcher.batcher.has_asides)
        fn.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            warms.result(PATIENCE_S)
        gate.open()
        assert call.result(PATIENCE_S) == "a"
    fn.shutdown()
    assert gate.batches == [["a"]]


def test_a_task_that_is_cancelled_leaves_it() -> None:
    gate = Gate(shut=True, note=len)
    flavour = STREAMING[1]()
    with flavour.running():
        fn = flavour.decorate(gate, batch_sizes=(1, 2, 4))
        task = flavour.run(_begin(fn))  # type: ignore[attr-defined]
        gate.wait_for_batch()
        flavour.loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]
        until(task.done)
        gate.open()
        assert flavour.call(fn, "b") == "b"
        assert 2 not in gate.batches


async def _begin(fn: Any) -> Any:
    import asyncio

    return asyncio.get_running_loop().create_task(fn.awarm_up("a"))
