"""A function that fails for items together, though each works: it is said, and costs no more than that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.kit.culprits import Bad
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.optional import needs_torch, torch


def alike(rows: list[Any]) -> list[int]:
    """Return the sums of rows, which must be of one length."""
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows differ: activate padding\nsecond line")
    return [sum(row) for row in rows]


def stacked(rows: list[Any]) -> list[float]:
    """Return the sums of tensors, which must be of one shape."""
    return [float(row.sum()) for row in torch.stack([torch.ones(len(row)) for row in rows])]


UNLIKE = [(1,) * size for size in range(1, 33)]
SUMS = list(range(1, 33))


def batch_of(flavour: Flavour, fn: Any, items: list[Any]) -> list[Any]:
    """Return the answers to single calls that share a batch."""
    futures = [flavour.start(fn, item) for item in items]
    answers = [future.result(PATIENCE_S) for future in futures]
    until(lambda: not fn.stats.running_items)
    return answers


@pytest.mark.parametrize("function", [alike, pytest.param(stacked, marks=needs_torch)])
def test_it_is_in_the_log_once_in_the_stats_and_explained(
    flavour: Flavour, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the traceback into the function, and with what to do."""
    fn = flavour.decorate(function, name="embed", batch_size=32, timeout_ms=60_000, adaptive=False)
    assert fn.stats.batch_error is None
    with caplog.at_level(logging.WARNING, "batched"):
        for _ in range(3):
            assert batch_of(flavour, fn, UNLIKE) == SUMS
    [record] = [record for record in caplog.records if record.name == "batched"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("embed: a batch raised ")
    assert "group_by" in record.getMessage()
    assert f"in {function.__name__}" in caplog.text
    said = "ValueError: rows differ: activate padding" if function is alike else "RuntimeError: stack expects"
    assert str(fn.stats.batch_error).startswith(said)
    assert said in str(fn.stats)
    assert said in fn.explain()
    assert "to find the items that fail" not in fn.explain()
    assert fn.stats.total_failed == 0


def test_another_type_of_error_is_in_the_log_too(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """The stats name the last one."""

    def function(rows: list[int]) -> list[int]:
        if len(rows) > 1:
            raise errors[0]
        return rows

    fn = flavour.decorate(function, batch_size=4, timeout_ms=60_000, adaptive=False)
    with caplog.at_level(logging.WARNING, "batched"):
        for error in (KeyError("a"), IndexError("b"), KeyError("c")):
            errors = [error]
            said = f"{type(error).__name__}: {error}"
            for _ in range(256 // 4 + 2):  # on a busy machine so many items may run one by one
                assert batch_of(flavour, fn, [1, 2, 3, 4]) == [1, 2, 3, 4]
                if fn.stats.batch_error == said:
                    break
            assert fn.stats.batch_error == said
    assert len([record for record in caplog.records if record.name == "batched"]) == 2


def test_the_next_batches_cost_next_to_no_more_than_single_items(flavour: Flavour) -> None:
    """In runs: at most a tenth more."""
    gate = Gate(alike)
    fn = flavour.decorate(gate, batch_size=32, timeout_ms=60_000, adaptive=False)
    assert batch_of(flavour, fn, UNLIKE) == SUMS
    assert len(gate.batches) <= 32 * 1.5
    for _ in range(4):
        gate.batches.clear()
        assert batch_of(flavour, fn, UNLIKE) == SUMS
        assert len(gate.batches) <= 32 * 1.1


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_small_batches_too(flavour: Flavour, size: int) -> None:
    """In the long run."""
    gate = Gate(alike)
    fn = flavour.decorate(gate, batch_size=size, timeout_ms=60_000, adaptive=False)
    for _ in range(2):
        batch_of(flavour, fn, UNLIKE[:size])
    gate.batches.clear()
    for _ in range(32 // size):
        assert batch_of(flavour, fn, UNLIKE[:size]) == SUMS[:size]
    assert len(gate.batches) <= 32 * 1.1


def test_once_items_work_together_they_share_batches_again(flavour: Flavour) -> None:
    """After some that run one by one."""
    gate = Gate(alike)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, adaptive=False)
    for _ in range(4):
        batch_of(flavour, fn, UNLIKE[:8])
    for _ in range(256 // 8 + 1):
        gate.batches.clear()
        assert batch_of(flavour, fn, [(1,)] * 8) == [1] * 8
    assert gate.batches == [[(1,)] * 8]
    assert fn.stats.batch_error is not None  # it was so


def test_an_error_that_passes_changes_nothing(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """The halves work, so the next batch runs as a whole; nothing is logged."""

    def function(rows: list[int]) -> list[int]:
        if errors:
            raise errors.pop()
        return rows

    gate = Gate(function)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, adaptive=False)
    items = list(range(8))
    with caplog.at_level(logging.WARNING, "batched"):
        for _ in range(3):
            errors = [RuntimeError("busy")]
            gate.batches.clear()
            assert batch_of(flavour, fn, items) == items
            assert gate.batches == [items, items[:4], items[4:]]
            assert batch_of(flavour, fn, items) == items
            assert gate.batches[3:] == [items]
    assert fn.stats.batch_error is None
    assert not [record for record in caplog.records if record.name == "batched"]
    assert "to find the items that fail" in fn.explain()


@pytest.mark.parametrize("size", [2, 3])
def test_an_error_that_passes_is_no_reason_to_run_the_next_small_batch_one_by_one(
    flavour: Flavour, size: int
) -> None:
    """Though each item ran alone, as there are no smaller parts."""

    def function(rows: list[int]) -> list[int]:
        if errors:
            raise errors.pop()
        return rows

    gate = Gate(function)
    fn = flavour.decorate(gate, batch_size=size, timeout_ms=60_000, adaptive=False)
    items = list(range(size))
    for _ in range(3):
        errors = [RuntimeError("busy")]
        assert batch_of(flavour, fn, items) == items
        gate.batches.clear()
        assert batch_of(flavour, fn, items) == items
        assert gate.batches == [items]


def test_an_item_that_fails_is_still_found_and_no_fault_of_the_batch(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while items run one by one."""

    def function(rows: list[Any]) -> list[int]:
        if any(len(row) > 100 for row in rows):
            raise Bad
        return alike(rows)

    fn = flavour.decorate(function, batch_size=8, timeout_ms=60_000, adaptive=False)
    with caplog.at_level(logging.WARNING, "batched"):
        futures = [flavour.start(fn, row) for row in [*[(1,)] * 7, (1,) * 101]]
        assert [type(future.exception(PATIENCE_S)) for future in futures] == [type(None)] * 7 + [Bad]
        assert not [record for record in caplog.records if record.name == "batched"]
        for _ in range(3):
            batch_of(flavour, fn, UNLIKE[:8])
        futures = [flavour.start(fn, row) for row in [*UNLIKE[:7], (1,) * 101]]
        assert [type(future.exception(PATIENCE_S)) for future in futures] == [type(None)] * 7 + [Bad]
    assert fn.stats.total_failed == 2


def test_arrays_are_no_different(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """Of calls with one row each."""

    def function(features: dict[str, Any]) -> Any:
        if len(features["x"]) > 1:
            raise ValueError("one at a time")
        return features["x"]

    gate = Gate(function, note=lambda features: len(features["x"]))
    fn = flavour.decorate_arrays(gate, batch_size=8, timeout_ms=60_000, adaptive=False)
    with caplog.at_level(logging.WARNING, "batched"):
        for _ in range(2):
            gate.batches.clear()
            futures = [flavour.start(fn, x=np.full((1, 2), value)) for value in range(8)]
            assert [future.result(PATIENCE_S)[0, 0] for future in futures] == list(range(8))
            until(lambda: not fn.stats.running_items)
    assert gate.batches == [1] * 8
    assert "one at a time" in caplog.text


def test_streams_are_no_different(streaming: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """A generator that fails before its first pieces."""

    def function(rows: list[Any]) -> Iterator[list[int]]:
        steps.append(len(rows))
        yield alike(rows)

    steps: list[int] = []
    fn = streaming.decorate(function, batch_size=8, timeout_ms=60_000, adaptive=False)
    with caplog.at_level(logging.WARNING, "batched"):
        for _ in range(2):
            steps.clear()
            streams = [streaming.stream(fn, row) for row in UNLIKE[:8]]
            assert [list(stream) for stream in streams] == [[total] for total in SUMS[:8]]
            until(lambda: not fn.stats.running_items)
    assert steps == [1] * 8
    assert "rows differ" in caplog.text


def test_a_handler_of_the_log_may_ask_the_batcher_and_may_fail(flavour: Flavour) -> None:
    """It runs without the lock, and no caller is lost by it."""

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(fn.stats.batch_error)
            raise RuntimeError("the disk is full")

    said: list[Any] = []
    handler = Asking()
    fn = flavour.decorate(alike, batch_size=4, timeout_ms=60_000, adaptive=False)
    logging.getLogger("batched").addHandler(handler)
    try:
        assert batch_of(flavour, fn, UNLIKE[:4]) == SUMS[:4]
    finally:
        logging.getLogger("batched").removeHandler(handler)
    assert said == ["ValueError: rows differ: activate padding"]
