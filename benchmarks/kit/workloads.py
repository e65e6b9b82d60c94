"""The workloads by name, the fast ones first. Each yields its rows as it measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.kit.measure import Effort, Row
from benchmarks.load import traffic, waiting
from benchmarks.overhead import arrays, costs, loops

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "sync": costs.sync_round_trip,
    "method": costs.method_door,
    "acall": costs.acall_round_trip,
    "list": costs.long_list,
    "list-memory": costs.list_memory,
    "tasks": costs.singles_from_tasks,
    "threads": costs.singles_from_threads,
    "backlog": costs.waiting_singles,
    "pending-memory": costs.pending_memory,
    "ragged-rows": arrays.ragged_rows,
    "equal-rows": arrays.equal_rows,
    "closed-loops": traffic.closed_loops,
    "singles-beside-lists": traffic.singles_beside_lists,
    "list-beside-singles": traffic.list_beside_singles,
    "poisson": traffic.poisson_arrivals,
    "learning": waiting.learning,
    "patience": waiting.patience,
    "returning": waiting.returning,
    "idle": costs.idle,
    "loop-await": loops.idle_await,
    "loop-tasks": loops.singles,
    "loop-list": loops.long_list,
    "loop-capacity": loops.closed_loop,
    "loop-idle": loops.idle,
}
