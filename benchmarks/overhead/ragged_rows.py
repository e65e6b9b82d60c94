"""The time to pad and cut single rows of three features and many lengths, beside a fill by hand and 0.1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from batched import inference
from benchmarks.kit.callers import closed_tasks
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.own_process import beside_rival
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns, Unavailable
from benchmarks.overhead.features import BATCH, CALLERS, Features, filled_by_hand, rows, sums

Zeros = Callable[[tuple[int, int]], Any]
Made = Callable[[], tuple[list[Features], Zeros]]

_WRAPPER = SimpleNamespace(__wrapped__=sums)


def _of_numpy() -> tuple[list[Features], Zeros]:
    return rows(CALLERS), partial(np.zeros, dtype=np.int64)


def _of_torch() -> tuple[list[Features], Zeros]:
    try:
        import torch  # noqa: PLC0415  not part of the extra
    except ImportError as error:
        raise Unavailable("torch is not installed") from error
    calls = [{key: torch.from_numpy(array) for key, array in call.items()} for call in rows(CALLERS)]
    return calls, partial(torch.zeros, dtype=torch.int64)


def _ours(made: Made) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        # The collator alone, which no public name reaches: here, so that 0.1.5 can import this module.
        from batched._collate.arrays import FeatureCollator  # noqa: PLC0415
        from batched._core.batch import Batch  # noqa: PLC0415
        from batched._core.options import ArrayOptions  # noqa: PLC0415

        calls, zeros = made()
        collator = FeatureCollator("sums", ArrayOptions(batch_size=BATCH))
        batches = []
        for start in range(0, len(calls), BATCH):
            read = [collator.read(_WRAPPER, (one,), {}, 0.0) for one in calls[start : start + BATCH]]
            batches.append(Batch([(call, 0, call.size) for call in read], len(read), "full"))
        outputs = [sums(padded) for padded in filled_by_hand(calls, zeros)]

        def run() -> Iterator[tuple[Any, Any]]:
            for batch, rows_of in zip(batches, outputs, strict=True):
                yield collator.collate(batch), collator.split(rows_of, batch)

        answers: list[Any] = []
        for (padded, answered), expected in zip(run(), filled_by_hand(calls, zeros), strict=True):
            assert all((padded[key] == expected[key]).all() for key in (*padded, *expected))
            answers += answered
        assert answers == list(range(CALLERS))
        yield lambda: _cpu_per_row(run, effort)

    return contender


def _by_hand(made: Made) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        calls, zeros = made()
        yield lambda: _cpu_per_row(lambda: filled_by_hand(calls, zeros), effort)

    return contender


def _cpu_per_row(run: Callable[[], Iterator[object]], effort: Effort) -> float:
    repeats = effort.of(20, 1)
    with Stopwatch() as spent:
        for _ in range(repeats):
            for _ in run():
                pass
    return spent.cpu / (repeats * CALLERS)


def cpu_from_tasks(each: int) -> float:
    """Return the CPU seconds per row of 256 tasks whose rows differ in length."""
    fn = inference.dynamically(sums, batch_size=BATCH, timeout_ms=0)
    passed = rows(CALLERS * each)

    def spent() -> float:
        return closed_tasks(lambda item: fn.acall(passed[item]), CALLERS, each).cpu / (CALLERS * each)

    spent()  # the first rows pay for memory that later ones find mapped
    return median(spent() for _ in range(3))


NUMPY, TORCH = (Turns({"ours": _ours(made), "fill": _by_hand(made)}) for made in (_of_numpy, _of_torch))
_EACH = (40, 2)
BESIDE_RIVAL = beside_rival(cpu_from_tasks, _EACH, rounds=5)

_NAME, _WHAT = "ragged rows / filled by hand", "collate + split, each ragged row"
ROWS = (
    Row(_NAME, _WHAT, NUMPY, "fill", goal=Goal(1.5)),
    Row(f"{_NAME}, torch", f"{_WHAT}, torch", TORCH, "fill"),
    Row("ragged rows / 0.1.5", f"CPU per ragged row, {CALLERS} tasks", BESIDE_RIVAL, RIVAL, goal=Goal(0.2)),
)
