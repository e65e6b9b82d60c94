"""Lists of several keys leave, are late, or meet the end of the batcher; nothing of their keys is kept."""

from __future__ import annotations

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import batchers, size_of


def parity(item: int) -> int:
    return item % 2


# -- leaving and being late -----------------------------------------------------------------------------


def test_a_cancelled_list_leaves_every_group(flavour: Flavour) -> None:
    """What of it has not started never runs, and no key is kept."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, group_by=parity)
    first = flavour.start(fn, 0)
    gate.wait_for_batch()
    gone = flavour.start(fn, [1, 2, 3, 4])
    stays = flavour.start(fn, [5, 6])
    flavour.cancel(gone)
    gate.open()
    assert (first.result(PATIENCE_S), stays.result(PATIENCE_S)) == (0, [5, 6])
    assert gate.batches == [[0], [5], [6]]
    assert fn.stats.total_cancelled == 4
    assert not any(size_of(each.queue) for each in batchers(fn))


def test_a_deadline_holds_for_a_list_of_mixed_keys(flavour: Flavour) -> None:
    """Also if one part of it has run already."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, group_by=parity)
    late = flavour.start(fn.options(deadline_ms=300), [1, 2, 3, 4])
    gate.wait_for_batch()
    expired = 2
    if flavour.name == "submit":  # whose deadline only drops what has not started: another caller is late too
        expired += 1
        with pytest.raises(TimeoutError):
            fn.options(deadline_ms=350)(5)
    else:
        with pytest.raises(TimeoutError):
            late.result(PATIENCE_S)
    gate.open()
    with pytest.raises(TimeoutError):
        late.result(PATIENCE_S)
    assert gate.batches == [[1, 3]]
    until(lambda: (fn.stats.total_expired, fn.stats.total_processed) == (expired, 2))


# -- many keys ------------------------------------------------------------------------------------------


def test_a_key_that_is_not_used_costs_nothing(flavour: Flavour) -> None:
    """A thousand keys leave nothing behind; what more of them cost is tested in the room `core`."""
    fn = flavour.decorate(Gate(), batch_size=64, timeout_ms=0, group_by=lambda item: item)
    count = 1000
    assert flavour.map(fn, range(count)) == list(range(count))
    assert flavour.call(fn, list(range(count))) == list(range(count))
    assert [size_of(batcher.queue) for batcher in batchers(fn)] == [0]
