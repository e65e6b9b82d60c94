"""What batches of a function cost, and what follows: `python -m batched profile NAME --items FILE`.

The function runs on batches of growing size, of the user's own items. What it takes is fitted by a cost for
each batch, for each item, and for each unit of length; and the scheduler itself, on a clock that is turned by
hand, says what callers can expect. Nothing is printed here: `python -m batched profile` does that.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from batched._api.function import DecoratedFunction
from batched._api.lists import dynamically
from batched._collate.item_length import length_of
from batched._core.options import Options
from batched._policy.batch_cost import TOO_SHORT_S
from batched._policy.length_cost import LengthCost
from batched.errors import is_error
from batched.testing.clock import ManualClock
from batched.testing.trial import Trial, decorated, that_share

__all__ = ["Expected", "Measured", "Profile", "profile"]

_LEAST_GAIN = 1.1
_KNEE = 1.1
_LEAST_SHARE = 0.1
_CALL_MS = 0.01  # what each of many calls takes besides the function: 0.006 from a task, 0.013 from a thread
_LESSONS = 60
_CALLERS = (1, 8, 32, 128)
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Measured:
    """What batches of one size took."""

    size: int
    """The number of items."""
    longest: float
    """The mean length of the longest item; 0 where items have no length."""
    took_ms: float
    """What a batch took, in milliseconds: its least time, and of several batches of this size the median."""
    item_ms: float
    """`took_ms` for each item."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What some callers can expect, each of which calls again as soon as it has its answer."""

    callers: int
    """How many callers there are."""
    items_per_s: float
    """What all callers get together, once the scheduler has learned."""
    alone_per_s: float
    """What the function does one by one."""
    latency_ms: float
    """The mean time from a call to its answer, once the scheduler has learned."""
    batch: float
    """The mean number of items in a batch, once the scheduler has learned."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What batches of a function cost, and what follows."""

    name: str
    """The name of the function."""
    batch_ms: float
    """What a batch takes whatever its size, in milliseconds."""
    item_ms: float
    """What each item adds."""
    length_ms: float
    """What each item adds for each unit of the longest item's length; 0 if length does not matter."""
    batch_size: int
    """The size to take: the smallest with which items take no more than a tenth longer than with the best.
    Where length matters, of batches of items of similar length, as the scheduler forms them."""
    gain: float
    """How many times faster items are in batches of this size than one by one."""
    measured: list[Measured] = field(default_factory=list)
    """What batches took, by size."""
    expected: list[Expected] = field(default_factory=list)
    """What 1, 8, 32 and 128 callers can expect."""

    @property
    def pays(self) -> bool:
        """Whether batches are worth it, with what a call takes besides the function."""
        alone_ms = self.measured[0].item_ms
        return alone_ms >= _LEAST_GAIN * (alone_ms / self.gain + _CALL_MS)

    def advice(self) -> list[str]:
        """Return what to do, in sentences."""
        if not self.pays:
            best_ms = min(each.item_ms for each in self.measured)
            alone_ms = self.measured[0].item_ms
            why = f"an item takes {alone_ms:.3g} ms alone, and at best {best_ms:.3g} ms in a batch"
            call = f", to which a call adds {_CALL_MS} ms" if self.gain >= _LEAST_GAIN else ""
            return [f"Do not batch {self.name}: {why}{call}."]
        which = "items of similar length" if self.length_ms else "items"
        larger = "gain little" if self.batch_size < self.measured[-1].size else "were not tried"
        gains = f"{which} are {self.gain:.3g} times as fast as alone"
        told = [
            f"A batch takes {self.batch_ms:.3g} ms, and {self.item_ms:.3g} ms for each item.",
            f"Take batch_size={self.batch_size}: {gains}, and larger batches {larger}.",
        ]
        if self.length_ms:
            told.append(
                f"Length matters: each item adds {self.length_ms:.3g} ms for each unit of the longest item's "
                f'length. Leave length="auto", or give a function that measures an item.'
            )
        return told

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {**asdict(self), "pays": self.pays, "advice": self.advice()}


def profile(  # noqa: PLR0913
    function: Callable[..., Any] | DecoratedFunction[Any],
    items: Sequence[Any],
    *,
    sizes: Iterable[int] | None = None,
    repeats: int = 5,
    progress: Callable[[int, int], object] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Profile:
    """Return what batches of `function` cost, with all of their stages.

    Args:
        function: A decorated function, or a plain one that takes a list. It runs in this thread.
        items: Some of the user's own items: as many as the largest size at least, or they are repeated. For a
            function over arrays, the features of calls; each row is an item.
        sizes: The sizes of batches to try, beside an item alone; by default `batch_sizes`, or else 1, 2, 4
            and so on, up to twice `batch_size`.
        repeats: How often each is tried; the least time counts.
        progress: Called after each size, with how many have been tried and how many there are.
        clock: What tells the seconds.

    Raises:
        ValueError: There are no items, a size is less than 1, none is above 1, items share no batch, as
            arrays of unlike layouts, or items of unlike keys of `group_by`, or each of them is answered with
            an exception.
        Exception: Whatever the function raises.

    """
    given = decorated(function, "profile")
    if not hasattr(items, "__len__"):
        raise TypeError(f"items must be a list of items, got {reprlib.repr(items)}")
    if not len(items):
        raise ValueError("items must be at least one, got none")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    tried = sorted(set(_sizes(given._driver.options) if sizes is None else sizes))  # noqa: SLF001
    if not tried or tried[0] < 1:
        raise ValueError(f"sizes must be at least 1, got {tried[:1]}")
    if tried == [1]:
        raise ValueError("sizes must have one above 1, as an item alone is what it is compared with, got [1]")
    tried = sorted({1, *tried})
    return _measured(Trial(given), items, tried, repeats, progress, clock)


def _measured(  # noqa: PLR0913, PLR0917
    trial: Trial,
    items: Sequence[Any],
    tried: list[int],
    repeats: int,
    progress: Callable[[int, int], object] | None,
    clock: Callable[[], float],
) -> Profile:
    """Return what the batches of a trial cost."""
    if trial.is_of_arrays:
        items = [row for item in items for row in _rows(trial, item)]
    _check_that_items_share(trial, items)
    if trial.is_of_arrays:  # anew: now it is known which features have some
        lengths: list[Any] = [trial.call(row).lengths for row in items]
    else:
        length: Callable[..., float] | str | None = getattr(trial.options, "length", None)
        lengths = [length_of(item) for item in items]
        if length is not None and not isinstance(length, str):
            lengths = [length(*item) if trial.has_columns else length(item) for item in items]
    answers = _Answers()
    # What is done once, such as a compilation, is no cost of batches.
    answers.note(trial.run([trial.call(items[0])]))
    rows: list[tuple[int, float, float]] = []
    measured: list[Measured] = []
    for done, size in enumerate(tried, 1):
        found = []
        for batch in _batches(lengths, size):
            try:
                took = _seconds(trial, [items[at] for at in batch], repeats, clock, answers)
            except Exception as error:
                worked = (
                    f", and worked for {', '.join(str(row.size) for row in measured)}" if measured else ""
                )
                error.add_note(f"{trial.name} was given a batch of {size}{worked}")
                raise
            found.append((_longest(lengths, batch), took))
        rows += [(trial.size_of(size), longest, took) for longest, took in found]
        took = median(took for _, took in found)
        longest = sum(longest for longest, _ in found) / len(found)
        measured.append(Measured(size, longest, took * 1000, took / size * 1000))
        if progress is not None:
            progress(done, len(tried))
    answers.check(trial.name)
    return _profile(trial, rows, lengths, measured)


def _profile(
    trial: Trial, rows: list[tuple[int, float, float]], lengths: list[Any], measured: list[Measured]
) -> Profile:
    """Return what follows from what batches took."""
    fixed, each, per_length = _fitted(rows)
    usual = sum(longest for _, longest, _ in rows) / len(rows)
    curve = {row.size: row.item_ms for row in measured}
    alone = curve[1]
    if per_length and (trial.is_of_arrays or trial.options.length is not None):
        mean = sum(length or 0.0 for length in lengths) / len(lengths)
        curve = {size: (fixed / size + each + per_length * mean) * 1000 for size in curve}
        alone = (fixed + each + per_length * mean) * 1000
    best = min(curve.values())
    knee = next(size for size, item_ms in curve.items() if item_ms <= _KNEE * best)

    if not per_length and knee > 1:  # larger batches may take far longer, which says nothing of smaller ones
        fixed, each, _ = _fitted([(size, 0.0, took) for size, _, took in rows if size <= trial.size_of(knee)])

    def cost_ms(size: int) -> float:
        return (fixed + (each + per_length * usual) * trial.size_of(size)) * 1000

    return Profile(
        trial.name,
        fixed * 1000,
        each * 1000,
        per_length * 1000,
        knee,
        alone / curve[knee] if curve[knee] else 1.0,
        measured,
        [_expected(trial.options, callers, knee, cost_ms) for callers in _CALLERS],
    )


def _sizes(options: Options) -> list[int]:
    """Return the only sizes that there are; or else 1, 2, 4 and so on, up to twice the size there is now."""
    if options.batch_sizes is not None:
        return [*options.batch_sizes]
    most = 2 * options.batch_size
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]


def _rows(trial: Trial, item: Any) -> list[Any]:
    """Return the rows of the features of a call, as features of calls of a row each."""
    call = trial.call(item)
    return (
        [item]
        if call.size == 1
        else [{key: value[at : at + 1] for key, value in item.items()} for at in range(call.size)]
    )


def _check_that_items_share(trial: Trial, items: Sequence[Any]) -> None:
    """Raise `ValueError` if an item can share no batch with the first."""
    calls = []
    for number, item in enumerate(items, 1):
        try:
            calls.append(trial.call(item))
        except (TypeError, ValueError) as error:
            error.add_note(f"it is item {number} of the items")
            raise
    _, *others = that_share(calls)
    if others:
        what, why = "item", "another key of group_by, or other parameters, than the first"
        if trial.is_of_arrays:
            what, why = "row", "other features than the first, or of another kind, or another key of group_by"
        place = others[0][0] + 1
        raise ValueError(f"{trial.name}: {what} {place} of the items has {why}: they share no batch")


def _batches(lengths: list[float | None], size: int) -> list[list[int]]:
    """Return the places of the items of some batches: the shortest items, the longest, and as they come."""
    count = len(lengths)
    as_they_come = [at % count for at in range(size)]
    known = [length for length in lengths if length is not None]
    if len(known) < count or len(set(known)) < 2:  # noqa: PLR2004
        return [as_they_come]
    order = sorted(range(count), key=lambda at: lengths[at] or 0.0)
    some = min(count // 2, size)  # so that lengths differ however few items there are
    shortest = [order[at % some] for at in range(size)]
    longest = [order[-1 - at % some] for at in range(size)]
    return [shortest, as_they_come, longest]


def _longest(lengths: list[float | None], batch: list[int]) -> float:
    return max((lengths[at] or 0.0) for at in batch)


class _Answers:
    """Whether the function works for any item: what its exceptions take says nothing of its batches."""

    def __init__(self) -> None:
        self._works = False
        self._error: object = None

    def note(self, answers: list[Any]) -> None:
        """Look at the answers of a batch."""
        if not self._works and answers:
            self._works = not all(map(is_error, answers))
            self._error = answers[0]

    def check(self, name: str) -> None:
        """Raise `ValueError` if each answer is an exception."""
        if not self._works:
            raise ValueError(
                f"{name} has answered each item with an exception, at last {self._error!r}: there is nothing "
                "to measure. Give items for which it works"
            )


def _seconds(
    trial: Trial, batch: list[Any], repeats: int, clock: Callable[[], float], answers: _Answers
) -> float:
    """Return the least that a batch takes."""
    least = inf
    for _ in range(repeats):
        calls = [trial.call(item) for item in batch]
        began = clock()
        found = trial.run(calls)
        least = min(least, clock() - began)
        answers.note(found)
    return least


def _fitted(rows: list[tuple[int, float, float]]) -> tuple[float, float, float]:
    """Return the costs that the scheduler would learn from these: of a batch, an item, a unit of length.

    Length is left out where it explains next to nothing.
    """
    if len({longest for _, longest, _ in rows}) > 1:
        costs = _learned(rows)
        if _share(costs.per_length, rows) >= _LEAST_SHARE:
            return costs.fixed, costs.each_alone, costs.per_length
    costs = _learned([(size, 0.0, took) for size, _, took in rows])
    return costs.fixed, costs.each_alone, 0.0


def _learned(rows: list[tuple[int, float, float]]) -> LengthCost:
    """Return what is learned if such batches run again and again."""
    costs = LengthCost()
    for _ in range(_LESSONS):
        for size, longest, took in rows:
            costs.add(size, longest, took)
    if costs.fixed <= TOO_SHORT_S:  # no batch is told to cost less
        costs.fixed = 0.0
    return costs


def _share(per_length: float, rows: list[tuple[int, float, float]]) -> float:
    """Return how much of the time of a batch the lengths that were tried change, where they change most."""
    shares = [0.0]
    for size in {size for size, _, _ in rows}:
        same = [(longest, took) for its, longest, took in rows if its == size]
        spread = max(longest for longest, _ in same) - min(longest for longest, _ in same)
        took = max(took for _, took in same)
        shares.append(per_length * size * spread / took if took else 0.0)
    return max(shares)


def _expected(options: Options, callers: int, size: int, cost_ms: Callable[[int], float]) -> Expected:
    """Return what callers can expect, by the scheduler itself on a clock that is turned by hand."""
    same = dynamically(
        lambda items: items,
        batch_size=size,
        timeout_ms=options.timeout_ms,
        adaptive=options.adaptive,
        max_concurrent_batches=options.max_concurrent_batches,
        name="same",
    )
    clock = ManualClock(same, takes_ms=lambda items: cost_ms(items) + _CALL_MS * items)
    waiting = [(clock.call(0), 0.0) for _ in range(callers)]
    latencies: list[float] = []
    learned_ms, learned_ran, learned_calls = 0.0, 0, 0
    while len(latencies) < _ROUNDS * callers and clock.step() is not None:
        still = []
        for call, began in waiting:
            if call.done():
                latencies.append(clock.now_ms - began)
                still.append((clock.call(0), clock.now_ms))
            else:
                still.append((call, began))
        waiting = still
        if not learned_calls and len(latencies) >= _ROUNDS * callers // 3:
            learned_ms, learned_ran, learned_calls = clock.now_ms, len(clock.ran), len(latencies)
    known, ran = latencies[learned_calls:], clock.ran[learned_ran:]
    elapsed_s = (clock.now_ms - learned_ms) / 1000
    return Expected(
        callers,
        len(known) / elapsed_s if elapsed_s else 0.0,
        1000 / cost_ms(1) if cost_ms(1) else inf,
        sum(known) / len(known) if known else 0.0,
        sum(each.size for each in ran) / len(ran) if ran else 0.0,
    )
