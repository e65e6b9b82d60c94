"""`map` and `amap` with `with_items`: each answer comes with its item."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import Gate
from tests.kit.maps import noted, slowly


def pairs(flavour: Flavour, fn: Any, *sources: Any) -> list[Any]:
    """Return all pairs of a map."""

    async def read() -> list[Any]:
        return [pair async for pair in fn.amap(*sources, with_items=True)]

    return flavour.run(read()) if flavour.in_tasks else list(fn.map(*sources, with_items=True))  # type: ignore[attr-defined,no-any-return]


def test_each_answer_comes_with_its_item(flavour: Flavour) -> None:
    """In order; whatever the source, and the options of the view."""
    fn = flavour.decorate(lambda items: [("out", item) for item in items], batch_size=4, timeout_ms=0)
    expected = [(item, ("out", item)) for item in range(30)]
    assert pairs(flavour, fn, range(30)) == expected
    assert pairs(flavour, fn, iter(range(30))) == expected
    assert pairs(flavour, fn, []) == []
    assert pairs(flavour, fn.options(deadline_ms=20_000), range(30)) == expected
    if flavour.in_tasks:
        assert pairs(flavour, fn, slowly(range(30))) == expected
    item = [1, 2]
    assert pairs(flavour, fn, [item])[0][0] is item


def test_an_item_of_several_columns_is_a_tuple(flavour: Flavour) -> None:
    """A plain one, of as many as there are columns."""

    def add(xs: list[int], ys: list[int]) -> list[int]:
        return [x + y for x, y in zip(xs, ys, strict=True)]

    fn = flavour.decorate(add, timeout_ms=0)
    found = pairs(flavour, fn, [1, 2, 3], iter([10, 20]))
    assert found == [((1, 10), 11), ((2, 20), 22)]
    assert type(found[0][0]) is tuple


def test_a_call_of_features_has_them_as_its_item(flavour: Flavour) -> None:
    """The mapping that was passed."""
    rows = {"x": np.ones((2, 2))}
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, timeout_ms=0)
    ((item, answer),) = pairs(flavour, fn, [rows])
    assert item is rows
    assert (answer == 2).all()


def test_an_item_of_a_method_has_no_instance(flavour: Flavour) -> None:
    """On an instance, and through the class."""

    class Model:
        double = flavour.decorate(lambda _, items: [2 * item for item in items], timeout_ms=0)

    model = Model()
    assert pairs(flavour, model.double, [1, 2]) == [(1, 2), (2, 4)]
    assert pairs(flavour, Model.double, model, [1, 2]) == [(1, 2), (2, 4)]


def test_an_error_is_raised_in_its_place_or_stands_beside_its_item(flavour: Flavour) -> None:
    """As without items."""
    fn = flavour.decorate(
        lambda items: [OwnError(item) if item == 3 else item for item in items], batch_size=2, timeout_ms=0
    )
    seen: list[Any] = []

    async def consume() -> None:
        async for pair in fn.amap(range(9), with_items=True):
            seen.append(pair)

    def read() -> None:
        for pair in fn.map(range(9), with_items=True):
            seen.append(pair)  # noqa: PERF402  those before the error are to be kept

    with pytest.raises(OwnError, match="code 3"):
        flavour.run(consume()) if flavour.in_tasks else read()  # type: ignore[attr-defined]
    assert seen == [(0, 0), (1, 1), (2, 2)]
    found = pairs(flavour, fn.options(return_exceptions=True), range(5))
    assert [item for item, _ in found] == [*range(5)]
    assert [type(answer) is OwnError for _, answer in found] == [item == 3 for item in range(5)]


def test_it_has_a_length_reads_no_further_ahead_and_can_be_left(flavour: Flavour) -> None:
    """At most three batches are kept for their answers."""
    fn = flavour.decorate(Gate(), batch_size=2, timeout_ms=0)
    seen: list[int] = []

    async def read() -> None:
        left = fn.amap(range(5), with_items=True)
        assert len(left) == 5
        assert await anext(left) == (0, 0)
        assert len(left) == 4
        await left.aclose()
        assert len(left) == 0
        ahead = fn.amap(noted(range(100), seen), with_items=True)
        async for item, _ in ahead:
            assert len(seen) - item <= 6
            if item == 50:
                break
        await ahead.aclose()
        await asyncio.sleep(0)

    if flavour.in_tasks:
        flavour.run(read())  # type: ignore[attr-defined]
    else:
        left = fn.map(range(5), with_items=True)
        assert len(left) == 5
        assert next(left) == (0, 0)
        assert len(left) == 4
        left.close()
        assert len(left) == 0
        for item, _ in fn.map(noted(range(100), seen), with_items=True):
            assert len(seen) - item <= 6
            if item == 50:
                break
    assert len(seen) < 100
