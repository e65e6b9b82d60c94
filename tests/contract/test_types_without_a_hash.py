"""Items and results of classes without a hash: their metaclass defines `__eq__` alone, or raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate


class ByName(type):  # noqa: PLW1641  it has none
    """Classes that are equal by their name, and so have no hash."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and cls.__name__ == other.__name__


class Refuses(type):
    """Classes that can be neither compared nor hashed."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("classes cannot be compared")

    def __hash__(cls) -> int:
        raise RuntimeError("classes cannot be hashed")


METACLASSES = pytest.mark.parametrize("metaclass", [ByName, Refuses])


@METACLASSES
@pytest.mark.parametrize("base", [object, list, dict, tuple, np.ndarray])
def test_a_result_of_such_a_class_is_one(flavour: Flavour, metaclass: type, base: type) -> None:
    """It fails neither its own caller nor the others, of which the views are copied as ever."""
    new: Any = metaclass("Odd", (base,), {})
    odd = new(3) if base is np.ndarray else new()
    rows = np.arange(8.0).reshape(4, 2)
    gate = Gate(lambda items: [odd if item == "odd" else rows[item] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=6, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in ([0, "odd"], "odd", 1, [2, 3])]
    gate.open()
    (first, listed), lone, second, others = [future.result(PATIENCE_S) for future in futures]
    assert listed is odd
    assert lone is odd
    assert [row.tolist() for row in (first, second, *others)] == rows.tolist()
    assert not any(np.shares_memory(row, rows) for row in (first, second, *others))
    assert flavour.call(flavour.decorate(lambda items: [odd], timeout_ms=0), 1) is odd


@METACLASSES
def test_an_exception_of_such_a_class_fails_its_own_item(flavour: Flavour, metaclass: type) -> None:
    """In the place of a result."""
    error: Any = metaclass("OddError", (Exception,), {})
    gate = Gate(lambda items: [error() if item < 0 else item for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in ([1, -2], -3, 4)]
    gate.open()
    for future in futures[:2]:
        with pytest.raises(error):
            future.result(PATIENCE_S)
    assert futures[2].result(PATIENCE_S) == 4


@METACLASSES
@pytest.mark.parametrize("base", [list, tuple])
def test_an_output_of_such_a_class_has_its_rows(flavour: Flavour, metaclass: type, base: type) -> None:
    """If it is a list or a tuple."""
    rows: Any = metaclass("Rows", (base,), {})
    assert flavour.call(flavour.decorate(lambda items: rows(items), timeout_ms=0), [1, 2]) == [1, 2]


@METACLASSES
def test_items_of_such_a_class_run_again_as_others_do(flavour: Flavour, metaclass: type) -> None:
    """Whether they can is asked of each of them, and also where copies fill a batch."""
    new: Any = metaclass("Odd", (), {})

    def refuse(items: list[Any]) -> list[Any]:
        if "bad" in [item for item in items if isinstance(item, str)]:
            raise ValueError("bad")
        return [0] * len(items)

    gate = Gate(refuse, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in (new(), "bad", new())]
    gate.open()
    assert futures[0].result(PATIENCE_S) == futures[2].result(PATIENCE_S) == 0
    with pytest.raises(ValueError, match="bad"):
        futures[1].result(PATIENCE_S)
    sized = flavour.decorate(refuse, batch_sizes=(4,), timeout_ms=0)
    assert flavour.call(sized, [new(), new()]) == [0, 0]


@METACLASSES
def test_an_item_of_such_a_class_is_a_key_if_it_has_a_hash(flavour: Flavour, metaclass: type) -> None:
    """The hash of an item is its own, not that of its class."""
    new: Any = metaclass("Odd", (), {})
    item = new()
    gate = Gate(lambda items: [0] * len(items))
    fn = flavour.decorate(gate, cache={}, timeout_ms=0)
    assert [flavour.call(fn, item), flavour.call(fn, [item, item])] == [0, [0, 0]]
    assert len(gate.batches) == 1
    grouped = flavour.decorate(lambda items: items, group_by=lambda item: item, timeout_ms=0)
    assert flavour.call(grouped, item) is item
