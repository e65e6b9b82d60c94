"""A cache together with a bound, keys, deadlines and all kinds of callers."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from batched import QueueFullError
from tests.kit.cached import nothing_is_left
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import batchers, blocked, outside, size_of


def test_a_bounded_queue_counts_only_what_is_not_known(flavour: Flavour) -> None:
    """And a refused call leaves no flight behind. Each of its items counts as rejected."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={"known": 1}, max_queue_size=2)
    busy = flavour.start(fn, "busy")
    gate.wait_for_batch()
    waiting = flavour.start(fn, ["known", "a", "b"])
    with pytest.raises(QueueFullError):
        flavour.call(fn, ["known", "a", "c"])
    with pytest.raises(ValueError, match="can never fit"):
        flavour.call(fn, ["d", "e", "f"])
    assert (fn.stats.total_rejected, fn.stats.total_cached) == (3, 1)
    gate.open()
    assert (busy.result(PATIENCE_S), waiting.result(PATIENCE_S)) == ("busy", [1, "a", "b"])
    assert flavour.call(fn, "c") == "c"
    nothing_is_left(fn)


def test_cache_groups_and_a_bounded_queue_together(flavour: Flavour) -> None:
    """Each item once, in batches of one key, within the bound, with errors in place."""
    flavour.needs_threads()
    gate = Gate(lambda items: [KeyError(item) if item == 7 else ("out", item) for item in items])
    fn = flavour.decorate(
        gate, batch_size=3, timeout_ms=0, cache={}, group_by=lambda item: item % 3,
        max_queue_size=12, on_full="wait", isolate_errors=True, max_concurrent_batches=2,
    )  # fmt: skip
    view = fn.options(return_exceptions=True)
    with ThreadPoolExecutor(4) as pool:
        asked = [[(seed + 2 * step) % 10 for step in range(12)] for seed in range(12)]
        for items, answers in zip(asked, pool.map(view, asked), strict=True):
            for item, answer in zip(items, answers, strict=True):
                assert isinstance(answer, KeyError) if item == 7 else answer == ("out", item)
    assert all(len({item % 3 for item in batch}) == 1 for batch in gate.batches)
    ran = Counter(item for batch in gate.batches for item in batch if item != 7)
    assert set(ran) == set(range(10)) - {7}
    assert flavour.map(view, range(6)) == [("out", item) for item in range(6)]
    nothing_is_left(fn)
    assert not blocked(fn)
    assert not outside(fn)
    assert not any(size_of(each.queue) for each in batchers(fn))
    flavour.close(fn)
