"""An element of a map that is refused at the door fails alone, at its own place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batched import BatchError
from tests.kit.effort import pairs
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.maps import BAD, noted, picky, read

REFUSING: dict[str, dict[str, Any]] = {
    "length": {"length": picky},
    "odd keys": {"group_by": lambda item: picky(item) % 3},
    "negative length": {"length": lambda item: -1 if item == BAD else 1},
    "budget": {"max_batch_length": 50},
    "group_by": {"group_by": picky},
    "cache_key": {"cache": True, "cache_key": picky},
    "no key": {"cache": True},
    "length and group_by": {"length": picky, "group_by": lambda item: int(item) % 3},
    "group_by and length": {"group_by": picky, "length": lambda _: 1},
    "group_by and cache": {"group_by": picky, "cache": True, "cache_key": lambda item: item},
    "length and cache": {"length": picky, "cache": True, "cache_key": lambda item: item},
    "all": {"length": picky, "group_by": picky, "cache": True, "cache_key": picky},
}


ITEMS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "budget": (lambda number: "x" * (number % 5), BAD),
    "no key": (lambda number: number, [BAD]),
}


@pytest.mark.parametrize(("how", "batch_size"), pairs(REFUSING, [1, 4, 32]))
def test_an_element_that_is_refused_fails_alone_at_its_place(
    flavour: Flavour, how: str, batch_size: int
) -> None:
    """With the error of a single call; nothing after it is answered, unless errors are to be returned."""
    options = {**REFUSING[how]}
    if options.get("cache") is True:
        options["cache"] = {}
    fn = flavour.decorate(
        lambda items: [("answer", item) for item in items], batch_size=batch_size, timeout_ms=0, **options
    )
    good, bad = ITEMS.get(how, (lambda number: number, BAD))
    with pytest.raises((BatchError, TypeError), match="failed|must return|needs a cache_key") as single:
        flavour.call(fn, bad if how != "no key" else [bad])
    rng = random.Random(how)
    for share in (0.02, 0.1, 0.5, 1.0):
        items = [bad if rng.random() < share else good(number) for number in range(60)]
        seen: list[Any] = []
        answers, error = read(flavour, fn, noted(items, seen))
        first = items.index(bad) if bad in items else len(items)
        assert answers == [("answer", item) for item in items[:first]]
        assert (None if error is None else str(error)) == (str(single.value) if bad in items else None)
        assert len(seen) <= first + 3 * batch_size
        answers, error = read(flavour, fn.options(return_exceptions=True), items)
        assert error is None
        for item, answer in zip(items, answers, strict=True):
            if item == bad:
                assert (type(answer), str(answer)) == (single.type, str(single.value))
            else:
                assert answer == ("answer", item)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_by": lambda features: features["x"].shape[1] % 2},
        {"cache": True, "cache_key": lambda features: features["x"].tobytes()},
        {"group_by": lambda _: 0, "cache": True, "cache_key": lambda features: features["x"].tobytes()},
    ],
    ids=["plain", "group_by", "cache", "both"],
)
def test_a_malformed_element_of_arrays_fails_alone_at_its_place(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """Whatever stands in front of the queue."""
    if "cache" in options:
        options = {**options, "cache": {}}
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, timeout_ms=0, **options)
    items: list[Any] = [{"x": np.full((1, 2), number)} for number in range(9)]
    items[4] = {"x": 3}
    items[6] = 5
    answers, error = read(flavour, fn, items)
    assert [answer.tolist() for answer in answers] == [[[2 * number] * 2] for number in range(4)]
    assert isinstance(error, TypeError)
    assert "'x' must be a numpy array" in str(error)
    answers, error = read(flavour, fn.options(return_exceptions=True), items)
    assert error is None
    assert [type(answer) for answer in answers] == [
        TypeError if number in {4, 6} else np.ndarray for number in range(9)
    ]
    assert [answer.tolist() for answer in answers[7:]] == [[[14] * 2], [[16] * 2]]


def test_where_a_column_is_missing_each_element_is_refused(flavour: Flavour) -> None:
    """The error names the column; it comes at the place of the first."""

    def add(xs: list[int], ys: list[int]) -> list[int]:
        return [x + y for x, y in zip(xs, ys, strict=True)]

    fn = flavour.decorate(add, timeout_ms=0)
    answers, error = read(flavour, fn, range(5))
    assert answers == []
    assert isinstance(error, TypeError)
    assert "missing a required argument: 'ys'" in str(error)
    answers, error = read(flavour, fn.options(return_exceptions=True), range(5))
    assert error is None
    assert [str(answer).split(": ", 1)[1] for answer in answers] == ["missing a required argument: 'ys'"] * 5
    assert fn.stats.total_accepted == 0


class Incomparable:
    """A key that can be hashed, but not compared with the others."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("no")


class Comparable:
    """A key of the same hash that equals its like."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True if isinstance(other, Comparable) else NotImplemented


def test_a_key_that_cannot_be_compared_fails_its_own_element(flavour: Flavour) -> None:
    """It may be refused as late as when it is queued, or, where a worker is quick, before."""
    gate = Gate(shut=True)
    asked = []

    def key(item: Any) -> Any:
        asked.append(item)
        if asked.count(3) == 2:  # the elements before it are queued, each for itself
            gate.open()
        return Incomparable() if item == BAD else Comparable()

    fn = flavour.decorate(gate, timeout_ms=0, batch_size=4, group_by=key)
    running = flavour.start(fn, 0)
    gate.wait_for_batch()
    waiting = flavour.start(fn, 0)
    answers, error = read(flavour, fn.options(return_exceptions=True), [1, 2, BAD, 3])
    assert error is None
    assert [answers[0], answers[1], answers[3]] == [1, 2, 3]
    assert isinstance(answers[2], BatchError | ZeroDivisionError)
    assert [running.result(PATIENCE_S), waiting.result(PATIENCE_S)] == [0, 0]


def test_callbacks_are_asked_once_where_no_element_is_refused(flavour: Flavour) -> None:
    """Each element costs one call of each callback."""
    asked: list[int] = []

    def measure(item: int) -> int:
        asked.append(item)
        return 1

    fn = flavour.decorate(lambda items: items, batch_size=4, timeout_ms=0, length=measure)
    assert read(flavour, fn, range(40)) == (list(range(40)), None)
    assert sorted(asked) == list(range(40))
