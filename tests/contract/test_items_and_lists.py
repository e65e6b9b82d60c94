"""One item or a list: what calls bring, and in which form they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.proxy import Proxy


@pytest.mark.parametrize(
    "item", ["a", ("a", "b"), None, 0, {"a": 1}, {1, 2}, deque([1]), b"bytes", StopIteration, float("inf")]
)
def test_anything_but_a_list_is_one_item(flavour: Flavour, item: Any) -> None:
    """A tuple, a string, None and so on go in as one item and come back as one result."""
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0)
    assert item == flavour.call(fn, item)
    assert gate.batches == [[item]]


@pytest.mark.parametrize("items", [[1], [1, 2, 3], [[1, 2], [3]], [(1, 2)], [None, None], list(range(100))])
def test_a_list_comes_back_as_a_list_in_order(flavour: Flavour, items: list[Any]) -> None:
    """A list is many items, a list of lists many items that are lists, and order is kept."""
    fn = flavour.decorate(lambda xs: [(x,) for x in xs], batch_size=7, timeout_ms=0)
    assert [(x,) for x in items] == flavour.call(fn, items)


def test_an_empty_list_is_answered_at_once(flavour: Flavour) -> None:
    """No batch runs for an empty list."""
    gate = Gate(shut=True)
    assert flavour.call(flavour.decorate(gate), []) == []
    assert gate.batches == []


def test_a_list_subclass_is_many_items_and_answered_by_a_plain_list(flavour: Flavour) -> None:
    """Only what is a list is many; the answer is always a plain one."""

    class Items(list[int]):
        pass

    fn = flavour.decorate(Gate(), timeout_ms=0)
    answer = flavour.call(fn, Items([1, 2]))
    assert answer == [1, 2]
    assert type(answer) is list


def test_the_callers_list_is_copied_at_the_door(flavour: Flavour) -> None:
    """What a caller does to its list afterwards, or the function to its own, reaches no one else."""
    gate = Gate(lambda xs: [xs.pop(0) for _ in range(len(xs))], shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    items = [1, 2, 3, 4]
    future = flavour.start(fn, items)
    gate.wait_for_batch()
    items[:] = [9, 9, 9, 9, 9]
    gate.open()
    assert future.result(PATIENCE_S) == [1, 2, 3, 4]
    assert items == [9, 9, 9, 9, 9]


def test_the_argument_can_be_named(flavour: Flavour) -> None:
    """The one parameter is accepted by its own name, and only that."""

    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    fn = flavour.decorate(double, timeout_ms=0)
    assert flavour.call(fn, numbers=2) == 4
    assert flavour.call(fn, numbers=[2, 3]) == [4, 6]
    for args, named in [((), {}), ((1, 2), {}), ((), {"number": 1}), ((1,), {"numbers": 1})]:
        with pytest.raises(TypeError, match="takes one argument, 'numbers'"):
            flavour.call(fn, *args, **named)


def test_an_async_batch_function_works(flavour: Flavour) -> None:
    """An `async def` batch function is run to its end, batch after batch, on one loop."""
    loops = set()

    async def double(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return [2 * item for item in items]

    fn = flavour.decorate(double, batch_size=2, timeout_ms=0)
    assert flavour.call(fn, [1, 2, 3]) == [2, 4, 6]
    assert flavour.call(fn, 4) == 8
    assert len(loops) == 1
    flavour.close(fn)


def test_a_list_of_another_kind_is_what_it_iterates_over(flavour: Flavour) -> None:
    """However it is cut or indexed."""

    class Doubled(list[int]):
        def __iter__(self) -> Iterator[int]:
            return (2 * item for item in range(len(self)))

    fn = flavour.decorate(lambda items: list(items), batch_size=2, timeout_ms=0)
    assert flavour.call(fn, Doubled([0, 1, 2, 3, 4])) == [0, 2, 4, 6, 8]


def test_the_result_of_one_item_is_the_functions_own_even_a_list(flavour: Flavour) -> None:
    """No more is done to it with `return_exceptions` than without."""
    row = [1, OwnError(2)]
    fn = flavour.decorate(lambda items: [row for _ in items], timeout_ms=0)
    assert flavour.call(fn, 1) is row
    assert flavour.call(fn.options(return_exceptions=True), 1) is row


@pytest.mark.parametrize("options", [{}, {"cache": True}, {"isolate_errors": False}])
def test_an_item_that_does_not_tell_its_class_harms_no_other_call(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """As a proxy of a web framework does in another thread: whether the batch fails, or returns it."""
    if "cache" in options:
        options = {"cache": {}, "cache_key": id}
    proxy = Proxy()

    def function(items: list[Any]) -> list[Any]:
        if any(item is bad for item in items):
            raise ValueError("bad", proxy)
        return items

    bad = object()
    fn = flavour.decorate(function, timeout_ms=0, **options)
    one, found, other = flavour.call(fn, ["one", proxy, "other"])
    assert (one, other) == ("one", "other")
    assert found is proxy
    if options.get("isolate_errors", True):
        *good, failed = flavour.call(fn.options(return_exceptions=True), ["two", proxy, bad])
        assert good[0] == "two"
        assert good[1] is proxy
        assert type(failed) is ValueError
    with pytest.raises(ValueError, match="bad"):
        flavour.call(fn, [proxy, bad])
    assert flavour.call(fn, ["next"]) == ["next"]
