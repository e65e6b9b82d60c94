"""The workloads by name, the fast ones first. Each yields its rows as it measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks import arrays, loops, overhead, traffic, waiting
from benchmarks.measure import Effort, Row

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "sync": overhead.sync_round_trip,
    "method": overhead.method_door,
    "acall": overhead.acall_round_trip,
    "list": overhead.long_list,
    "list-memory": overhead.list_memory,
    "tasks": overhead.singles_from_tasks,
    "threads": overhead.singles_from_threads,
    "backlog": overhead.waiting_singles,
    "pending-memory": overhead.pending_memory,
    "ragged-rows": arrays.ragged_rows,
    "equal-rows": arrays.equal_rows,
    "closed-loops": traffic.closed_loops,
    "singles-beside-lists": traffic.singles_beside_lists,
    "list-beside-singles": traffic.list_beside_singles,
    "poisson": traffic.poisson_arrivals,
    "learning": waiting.learning,
    "patience": waiting.patience,
    "returning": waiting.returning,
    "idle": overhead.idle,
    "loop-await": loops.idle_await,
    "loop-tasks": loops.singles,
    "loop-list": loops.long_list,
    "loop-capacity": loops.closed_loop,
    "loop-idle": loops.idle,
}
