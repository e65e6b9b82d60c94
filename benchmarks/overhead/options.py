"""The time of a call with every option set, of the decorator and of the call, beside the call with none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import batched
from benchmarks.kit.bare import echo
from benchmarks.kit.callers import around_asynchronously, around_synchronously
from benchmarks.kit.measure import Effort, one_core
from benchmarks.kit.row import Row
from benchmarks.kit.turns import Contender, Turns, using

__all__ = ["CALL_OPTIONS", "EVERY_OPTION", "ROWS", "STAGES"]


class _Forgetful:
    """A cache that knows nothing: every call is a miss."""

    def get(self, key: Any) -> None:
        """Find nothing."""

    def set(self, key: Any, result: Any) -> None:
        """Keep nothing."""


def _one(_: Any) -> int:
    return 1


def _itself(item: Any) -> Any:
    return item


# All but `max_pieces`, which is for generators, and those of stages, which go with one worker. None holds a
# call up: there is room, the key is always the same, and no batch waits.
EVERY_OPTION: dict[str, Any] = {
    "batch_size": 31,
    "timeout_ms": 0,
    "small_batch_threshold": 7,
    "adaptive": False,
    "max_concurrent_batches": 2,
    "workers": batched.Workers(2),
    "max_queue_size": 1_000_000,
    "on_full": "wait",
    "isolate_errors": False,
    "max_batch_length": 1_000_000,
    "batch_sizes": (1, 31),
    "default_deadline_ms": 60_000,
    "length": _one,
    "group_by": _one,
    "fair_by": _one,
    "cache": _Forgetful(),
    "cache_key": _itself,
    "on_batch": _itself,
    "name": "every option",
}
STAGES: dict[str, Any] = {"prepare": _itself, "finish": _itself}


class _Blank(dict[Any, Any]):
    """A cache of a request that knows nothing."""

    def __setitem__(self, key: Any, result: Any) -> None:
        """Keep nothing."""


CALL_OPTIONS: dict[str, Any] = {
    "deadline_ms": 60_000,
    "priority": "bulk",
    "return_exceptions": True,
    "request_cache": _Blank(),
}

Round = Callable[[Any, Effort], float]


def _contender(measure: Round, options: dict[str, Any], call_options: dict[str, Any]) -> Contender:
    @contextmanager
    def opened() -> Iterator[Any]:
        with batched.dynamically(echo, **{"timeout_ms": 0, **options}) as fn:
            yield fn.options(**call_options) if call_options else fn

    return using(opened, measure)


def _sync(fn: Any, effort: Effort) -> float:
    return around_synchronously(fn, effort.of(2_000, 50))


def _async(fn: Any, effort: Effort) -> float:
    return around_asynchronously(fn.acall, effort.of(2_000, 50))


def _row(
    way: str,
    measure: Round,
    what: str,
    options: dict[str, Any] | None = None,
    call_options: dict[str, Any] | None = None,
) -> Row:
    turns = Turns(
        {
            "ours": _contender(measure, options or {}, call_options or {}),
            "no option": _contender(measure, {}, {}),
        },
        inside=one_core,
    )
    return Row(f"{what} / none, {way}", f"idle {way} round trip, {what} set, one core", turns, "no option")


_EVERY, _OF_THE_CALL = "every option", "every option of the call"
ROWS = (
    _row("sync", _sync, _EVERY, options=EVERY_OPTION),
    _row("acall", _async, _EVERY, options=EVERY_OPTION),
    _row("sync", _sync, "prepare and finish", options=STAGES),
    _row("sync", _sync, _OF_THE_CALL, call_options=CALL_OPTIONS),
    _row("acall", _async, _OF_THE_CALL, call_options=CALL_OPTIONS),
)
