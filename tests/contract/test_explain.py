"""What `fn.explain()` says of functions that have run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import batched
from tests.kit.functions import plain_echo
from tests.kit.gate import PATIENCE_S, Gate, until


@pytest.mark.parametrize("of", ["lengths", "arrays"])
def test_of_a_lone_caller_nothing_is_said_that_only_company_tells(of: str) -> None:
    """Neither what an item costs, nor what sharing would save."""
    fn: Any = batched.dynamically(plain_echo, length=len)
    item: Any = "hello"
    if of == "arrays":
        fn, item = batched.inference.dynamically(lambda features: features["x"]), {"x": np.ones((1, 5))}
    for _ in range(40):
        fn(item)
    said = fn.explain()
    assert "The cost of an item is not known: too few batches differed in size." in said
    assert "each item adds" not in said
    assert "saves almost nothing" not in said
    assert "Calls have come one at a time" in said


def test_of_a_stream_nothing_is_said_of_lengths() -> None:
    """They are not looked at."""

    @batched.dynamically
    def letters(words: list[str]) -> Iterator[list[Any]]:
        yield words
        yield [batched.DONE] * len(words)

    for _ in range(20):
        assert list(letters.stream("hello")) == ["hello"]
    assert "ength" not in letters.explain()


def test_items_that_wait_for_a_batch_of_one_are_no_lone_callers() -> None:
    """Where a budget on lengths lets no two of them share a batch."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, max_batch_length=4, timeout_ms=0)
    with ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(fn, "hello") for _ in range(20)]
        until(lambda: fn.stats.total_accepted == 20)
        gate.open()
        assert [answer.result(PATIENCE_S) for answer in answers] == ["hello"] * 20
    assert fn.stats.batch_size.max == 1
    said = fn.explain()
    assert "one at a time" not in said
    assert "Most batches fill up before they reach 64 items, because of max_batch_length=4." in said
