"""Keys that cannot be had, hashed or compared."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


class Incomparable:
    """A key that can be hashed, and nothing more."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda item: item["missing"], "embed: group_by failed: TypeError"),
        (lambda item: [item], "embed: group_by failed: TypeError: unhashable"),
        (lambda item: item, "embed: group_by failed: RuntimeError: boom"),
    ],
)
def test_a_key_that_fails_or_is_none_fails_that_call_only(flavour: Flavour, key: Any, message: str) -> None:
    """With the callback named; nothing is queued."""

    class Booby:
        def __hash__(self) -> int:
            raise RuntimeError("boom")

    fn = flavour.decorate(
        Gate(), timeout_ms=0, name="embed", group_by=lambda item: item if item == "good" else key(Booby())
    )
    for items in (1, ["good", 1]):
        with pytest.raises(BatchError, match=message):
            flavour.call(fn, items)
    assert flavour.call(fn, ["good", "good"]) == ["good", "good"]
    assert fn.stats.total_accepted == 2


def test_keys_that_cannot_be_compared_fail_that_call_only(flavour: Flavour) -> None:
    """The one that came second; the first is answered."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, timeout_ms=0, group_by=lambda item: Incomparable() if item else 0)
    held = flavour.start(fn, 0)
    gate.wait_for_batch()
    first = flavour.start(fn, 1)
    with pytest.raises(BatchError, match="group_by returned a key of type Incomparable"):
        flavour.call(fn, 2)
    with pytest.raises(BatchError, match="group_by returned a key of type Incomparable"):
        flavour.call(fn, [0, 2])  # of which nothing runs, the item of a known key neither
    gate.open()
    assert (held.result(PATIENCE_S), first.result(PATIENCE_S)) == (0, 1)
    assert flavour.call(fn, 0) == 0
    until(lambda: not fn.stats.running_items)
    assert (fn.stats.total_accepted, fn.stats.total_processed) == (3, 3)


def test_a_key_that_fails_in_a_map_is_raised_at_its_place(flavour: Flavour) -> None:
    """After the answers before it; with return_exceptions it stays there."""
    flavour.needs_threads()
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0, group_by=lambda item: 6 // item)
    mapped = fn.map([1, 2, 3, 1, 2, 0, 3])
    assert list(islice(mapped, 5)) == [1, 2, 3, 1, 2]
    with pytest.raises(BatchError, match="group_by failed: ZeroDivisionError"):
        next(mapped)
    answers = flavour.map(fn.options(return_exceptions=True), [0, 1, 0, 0, 0, 0, 2])
    assert [row if isinstance(row, int) else BatchError for row in answers] == [
        BatchError, 1, BatchError, BatchError, BatchError, BatchError, 2,
    ]  # fmt: skip


def test_an_empty_list_needs_no_key(flavour: Flavour) -> None:
    """It is answered at once, also where a key that is asked for in the caller's context cannot be had."""

    def failing() -> Any:
        raise LookupError("no tenant")

    fn = flavour.decorate(Gate(), group_by=failing)
    assert flavour.call(fn, []) == []
    with pytest.raises(BatchError, match="group_by failed: LookupError: no tenant"):
        flavour.call(fn, 1)
