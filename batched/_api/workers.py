"""The workers that several functions share, as users hold them: `batched.Workers`, and its figures."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import index
from typing import Any, Generic, Self, TypeVar, overload
from weakref import WeakValueDictionary

from batched._clock import monotonic
from batched._core.option_checks import a_callable, a_string, as_float
from batched._drivers.worker_pool import FunctionShare, PoolWorker, WorkerPool
from batched._features.batch_fault import in_words
from batched._locks import Freed, Guard

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """The figures of one worker."""

    index: int
    """Its place among the workers, from 0."""
    name: str
    """Its name."""
    is_ready: bool
    """Whether its thread runs, and its state is made."""
    starting_s: float | None
    """For how many seconds the `initializer` has been making its state; None if it is not."""
    busy: float
    """The share of the time, since the first worker started, in which it ran batches: 0 to 1."""
    restarts: int
    """How often a function has raised `RestartWorker` on it."""
    error: str | None
    """Why its last start failed: the type of the error and its first line; None if it did not."""
    functions: Mapping[str, FunctionShare]
    """What it has run, by the name of the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStats:
    """The figures of all workers that functions share. Printed, they are a table."""

    name: str
    """The name of the workers, as `batched.Workers` was given it."""
    workers: tuple[WorkerStats, ...]
    """The figures of each worker."""

    @property
    def functions(self) -> Mapping[str, FunctionShare]:
        """What all workers have run, by the name of the function."""
        names = dict.fromkeys(name for worker in self.workers for name in worker.functions)
        return {
            name: _sum([each.functions[name] for each in self.workers if name in each.functions])
            for name in names
        }

    @property
    def busy(self) -> float:
        """The share of the time in which the workers ran batches, on average: 0 to 1."""
        return sum(worker.busy for worker in self.workers) / len(self.workers)

    def __str__(self) -> str:
        rows = [("worker", "busy", "function", "batches", "items", "seconds")]
        for worker in self.workers:
            state = worker.error or ""
            if worker.starting_s is not None:
                state = f"starting for {worker.starting_s:,.1f} s"
            rows.append((worker.name, f"{worker.busy:.0%}", state, "", "", ""))
            for name, share in worker.functions.items():
                rows.append(("", "", name, f"{share.batches:,}", f"{share.items:,}", f"{share.seconds:,.2f}"))
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if at in {0, 2} else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([f"{self.name}: {self.busy:.0%} busy", *lines])


class Workers(Generic[StateT]):
    """Worker threads that one function uses, or several share: `@batched.dynamically(workers=gpus)`.

    Each worker has a name, such as that of a device, and a state that `initializer` makes in its thread,
    before its first batch. A batch function finds both by `batched.current_worker()`.

    Functions that share workers take turns: the function of the oldest call is next, small calls go ahead
    of large ones, and calls that have used up half of the time until their deadline ahead of both. Each
    function keeps its own queue, options and stats. The threads start with the first call, or with `start()`,
    and end with `shutdown()`, or when this object and the last function that uses it are gone.
    """

    @overload
    def __init__(
        self: Workers[None],
        workers: int | Iterable[str] = 1,
        /,
        *,
        initializer: None = None,
        name: str = "workers",
    ) -> None: ...

    @overload
    def __init__(
        self,
        workers: int | Iterable[str] = 1,
        /,
        *,
        initializer: Callable[[str], Awaitable[StateT]],
        name: str = "workers",
    ) -> None: ...

    @overload
    def __init__(
        self,
        workers: int | Iterable[str] = 1,
        /,
        *,
        initializer: Callable[[str], StateT],
        name: str = "workers",
    ) -> None: ...

    def __init__(
        self,
        workers: int | Iterable[str] = 1,
        /,
        *,
        initializer: Callable[[str], Any] | None = None,
        name: str = "workers",
    ) -> None:
        """Make workers; their threads start when they are needed.

        Args:
            workers: How many, or a name for each. Numbered workers are named "0", "1", and so on.
            initializer: Makes the state of a worker from its name, in its thread; it may be `async def`. If
                it raises, the other workers go on without this one. If there is no other worker, the calls in
                the queues get its error, and the next call tries again.
            name: The name in threads, logs and stats.

        """
        self.names: tuple[str, ...] = _names(workers)
        """The names of the workers, in order."""
        if initializer is not None:
            a_callable("initializer", initializer, "a worker's name", takes=1)
        self.pool: Any = WorkerPool(self.names, initializer, a_string("name", name))
        self.weight: float | None = None
        """The weight of a function that is given this view of the workers; None counts as 1."""
        self._whole: Workers[StateT] | None = None  # of a view: it keeps these, which the threads end with
        self._token = uuid.uuid4().hex
        self.pool.end_with(self)
        _by_token[self._token] = self

    def weighted(self, weight: float) -> Self:
        """Return these workers for a function of this weight: `workers=gpus.weighted(3)`.

        While functions wait for the workers, each gets a share of their time in proportion to its weight; a
        function without one has 1. Where no function has a weight, the one of the oldest call is next,
        however long its batch takes.
        """
        weight = as_float("weight", weight)
        if not isfinite(weight):
            raise ValueError(f"weight must be a finite number, got {weight:g}")
        if weight <= 0:
            raise ValueError(f"weight must be more than 0, got {weight:g}")
        view = object.__new__(type(self))
        vars(view).update(vars(self), weight=weight, _whole=self._whole or self)
        return view

    def start(self) -> None:
        """Start all workers, and return when each has its state, as a service does before it takes traffic.

        Raises the first error of the `initializer`; `ClosedError` after `shutdown()`.
        """
        self.pool.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Shut down all functions that use these workers, run the calls in their queues, and end the threads.

        Args:
            wait: Return only when the threads have ended.
            cancel_futures: Cancel the calls in the queues instead of running them.

        """
        self.pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    @property
    def stats(self) -> WorkersStats:
        """A snapshot of the workers' figures. Printed, it is a table."""
        pool: WorkerPool = self.pool
        now = monotonic()
        since = now if pool.began is None else pool.began
        return WorkersStats(
            name=pool.name, workers=tuple(_stats(worker, since, now) for worker in pool.workers)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        pool: WorkerPool = self.pool
        given = self.names, pool.initializer, pool.name
        return _unpickled, (type(self), self._token, self.weight, given)

    def __repr__(self) -> str:
        weight = "" if self.weight is None else f".weighted({self.weight:g})"
        return f"<batched.Workers {self.pool.name!r}: {', '.join(self.names)}>{weight}"


_by_token: WeakValueDictionary[str, Workers[Any]] = WeakValueDictionary()
_making = Guard()  # of two threads that unpickle the same workers, one makes them


def _unpickled(
    kind: type[Workers[Any]], token: str, weight: float | None, given: tuple[tuple[str, ...], Any, str]
) -> Workers[Any]:
    """Return the workers of this token, which each process makes once, or a view of them."""
    with Freed(_making.lock), _making.lock:
        whole = _by_token.get(token)
        if whole is None:
            names, initializer, name = given
            whole = kind(names, initializer=initializer, name=name)
            whole._token = token  # noqa: SLF001
            _by_token[token] = whole
    return whole if weight is None else whole.weighted(weight)


def _names(workers: int | Iterable[str]) -> tuple[str, ...]:
    """Return the names of workers; raise for what are none."""
    if isinstance(workers, str | bool):
        raise TypeError(f"Workers takes a number, or a list of names, got {workers!r}")
    if isinstance(workers, Iterable):
        names = tuple(workers)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"the name of a worker must be a string, got {name!r}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the names of workers must differ, {twice!r} was given twice")
    else:
        try:
            names = tuple(map(str, range(index(workers))))
        except TypeError:
            raise TypeError(f"Workers takes a number, or a list of names, got {workers!r}") from None
    if not names:
        raise ValueError(f"there must be at least 1 worker, got {workers!r}")
    return names


def _stats(worker: PoolWorker, since: float, now: float) -> WorkerStats:
    served = worker.served.copy()
    starts_since = worker.starts_since
    busy_s = sum([each.seconds for each in served.values()])
    if worker.busy_since is not None:
        busy_s += now - worker.counted_until
    return WorkerStats(
        index=worker.index,
        name=worker.name,
        is_ready=worker.current is not None,
        starting_s=None if starts_since is None else max(now - starts_since, 0.0),
        busy=min(busy_s / (now - since), 1.0) if now > since else 0.0,
        restarts=worker.restarts,
        error=None if (error := worker.error) is None else in_words(error),
        functions=served,
    )


def _sum(shares: Sequence[FunctionShare]) -> FunctionShare:
    return FunctionShare(
        batches=sum([share.batches for share in shares]),
        items=sum([share.items for share in shares]),
        seconds=sum([share.seconds for share in shares]),
    )


def explain_workers(workers: Any, name: str) -> str:
    """Return how busy `workers` are, with the function of this `name` first, in a sentence."""
    stats = workers.stats
    shares = stats.functions
    whole = sum([share.seconds for share in shares.values()])
    told = f"Its batches run on the workers {stats.name!r} ({', '.join(workers.names)}), which were busy"
    first = sorted(shares, key=lambda each: (each != name, -shares[each].seconds))
    parts = [f"{stats.busy * shares[each].seconds / whole:.0%} with {each}" for each in first if whole]
    starting = [
        f" The initializer has been making the state of {each.name!r} for {each.starting_s:,.1f} s."
        for each in stats.workers
        if each.starting_s is not None
    ]
    return f"{told} {stats.busy:.0%} of the time{': ' * bool(parts)}{', '.join(parts)}.{''.join(starting)}"
