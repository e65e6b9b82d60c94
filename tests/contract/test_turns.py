"""Keys take turns: a list of one key holds up no call of another key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate

BATCH_SIZE = 4


LONG = 101 * BATCH_SIZE


class Grouped:
    """Items are pairs of a key and a number; `group_by` gives the key."""

    options: dict[str, Any]

    def __init__(self, flavour: Flavour, **options: Any) -> None:
        self.flavour = flavour
        self.gate = Gate(shut=True)
        self.fn = self.decorated(batch_size=BATCH_SIZE, small_batch_threshold=2, timeout_ms=0, **options)
        self.futures: list[Any] = [self.single("first")]
        self.gate.wait_for_batch()

    def decorated(self, **options: Any) -> Any:
        """Return the function, which waits at the gate."""
        return self.flavour.decorate(self.gate, group_by=lambda item: item[0], **options)

    def single(self, key: str) -> Any:
        """Ask for one item."""
        return self.flavour.start(self.fn, (key, 0))

    def many(self, key: str, size: int) -> Any:
        """Ask for a list of items of one key."""
        return self.flavour.start(self.fn, [(key, number) for number in range(size)])

    def key_of(self, batch: Any) -> str:
        """Return the key that a batch is of."""
        (key,) = {key for key, _ in batch}
        return str(key)

    def order(self, *futures: Any) -> list[str]:
        """Return the keys of all batches after the first, once every call has its answer."""
        self.gate.open()
        for future in (*self.futures, *futures):
            future.result(PATIENCE_S)
        return [self.key_of(batch) for batch in self.gate.batches[1:]]


class Measured(Grouped):
    """The same where lengths are known."""

    def decorated(self, **options: Any) -> Any:
        """Return the function, which waits at the gate."""
        return super().decorated(length=lambda item: 1 + item[1] % 7, max_batch_length=1000, **options)


class Layouts(Grouped):
    """Arrays under different names, which cannot share a batch."""

    def decorated(self, **options: Any) -> Any:
        """Return the function, which waits at the gate."""
        self.gate.note = list
        self.gate.answer = lambda features: next(iter(features.values()))
        return self.flavour.decorate_arrays(self.gate, **options)

    def single(self, key: str) -> Any:
        """Ask for one row."""
        return self.many(key, 1)

    def many(self, key: str, size: int) -> Any:
        """Ask for rows of one layout."""
        return self.flavour.start(self.fn, {key: np.ones((size, 3))})

    def key_of(self, batch: Any) -> str:
        """Return the key that a batch is of."""
        (key,) = batch
        return str(key)


class Columns(Grouped):
    """Calls that pass different columns, and leave the others to their defaults."""

    def decorated(self, **options: Any) -> Any:
        """Return the function, which waits at the gate."""

        def function(number: list[int], **columns: list[int]) -> list[int]:
            return list(self.gate([(name, 0) for name in columns]) and number)

        return self.flavour.decorate(function, **options)

    def single(self, key: str) -> Any:
        """Ask for one item with a column of that name."""
        return self.flavour.start(self.fn, 0, **{key: 0})

    def many(self, key: str, size: int) -> Any:
        """Ask for a list of items with a column of that name."""
        return self.flavour.start(self.fn, [0] * size, **{key: [0] * size})


@pytest.fixture(params=[Grouped, Measured, Layouts, Columns])
def begin(request: pytest.FixtureRequest, flavour: Flavour) -> Callable[..., Grouped]:
    """Return a function of some kind that runs its first batch, for each way to have several keys."""
    begun: Callable[..., Grouped] = partial(request.param, flavour)
    return begun


def test_a_single_call_waits_for_no_list_of_another_key(begin: Callable[..., Grouped]) -> None:
    """It is in the next batch, not after the 101 batches of the list."""
    calls = begin()
    order = calls.order(calls.many("list", LONG), calls.single("single"))
    assert order == ["single"] + ["list"] * 101


def test_lists_of_several_keys_take_turns(begin: Callable[..., Grouped]) -> None:
    """One batch each; the shorter list is not behind the longer one."""
    calls = begin()
    order = "".join(calls.order(calls.many("a", 20), calls.many("b", 12), calls.many("c", 4)))
    # On a busy machine lengths may seem to cost, and then a list's last items are two batches instead of one.
    assert order.startswith("abcabab")
    together, alone = order[: order.rindex("b")], order[order.rindex("b") + 1 :]
    assert "aa" not in together
    assert "bb" not in together
    assert set(alone) == {"a"}


def test_a_list_gets_one_batch_in_eight_of_those_of_small_calls(begin: Callable[..., Grouped]) -> None:
    """However many keys small calls have."""
    calls = begin()
    futures = [calls.many("list", 3 * BATCH_SIZE), *(calls.single(f"k{number}") for number in range(30))]
    order = calls.order(*futures)
    assert [at for at, key in enumerate(order) if key == "list"] == [7, 16, 25]


def test_a_list_of_many_keys_is_no_small_call(flavour: Flavour) -> None:
    """Though each key has but one item of it, all of them are behind a single call."""
    calls = Grouped(flavour)
    several = flavour.start(calls.fn, [(f"k{number}", 0) for number in range(20)])
    assert calls.order(several, calls.single("single"))[0] == "single"


@pytest.mark.parametrize("kind", [Grouped, Measured, Layouts, Columns])
def test_a_key_in_its_window_holds_up_no_other_and_is_not_held_up(
    flavour: Flavour, kind: type[Grouped]
) -> None:
    """A full key has its turn while another key waits for company."""
    calls = kind(flavour, adaptive=False)
    calls.fn.configure(timeout_ms=60_000)
    alone = calls.single("alone")
    order = calls.order(calls.many("full", 2 * BATCH_SIZE))
    assert order == ["full"] * 2
    assert not alone.done()
    flavour.close(calls.fn)
    alone.result(PATIENCE_S)


def test_a_large_call_waits_for_no_list(flavour: Flavour) -> None:
    """Of one key: it is in the next batch, not after the 100 batches of the list."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=BATCH_SIZE, small_batch_threshold=0, timeout_ms=0, adaptive=False)
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    futures = [flavour.start(fn, [1] * 100 * BATCH_SIZE), flavour.start(fn, [2] * 3)]
    gate.open()
    for future in (first, *futures):
        future.result(PATIENCE_S)
    assert gate.batches[1].count(2) == 3
    assert len(gate.batches) == 1 + 101
