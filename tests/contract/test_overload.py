"""Deadlines under load: what is refused, what a caller is told, and bounds in time."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from batched import OverloadError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate


def held(flavour: Flavour, **options: Any) -> tuple[Gate, Any, Future[Any]]:
    """Return a function whose cost is known, and which is busy with a call."""
    gate = Gate(shut=True)
    gate.let_through(5)
    fn = flavour.decorate(gate, **{"timeout_ms": 0, "batch_size": 2, "name": "embed", **options})
    for item in range(5):
        assert flavour.call(fn, item) == item
        gate.wait_for_batch()
        fn.expected_wait_ms()  # from then on it learns what batches take
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    return gate, fn, first


def test_a_call_that_cannot_be_in_time_is_refused(flavour: Flavour) -> None:
    """At once, with an error that is a `TimeoutError`; it never runs."""
    gate, fn, first = held(flavour)
    with pytest.raises(OverloadError, match="embed cannot answer within deadline_ms=0.01.*") as caught:
        flavour.call(fn.options(deadline_ms=0.01), "hopeless")
    assert isinstance(caught.value, TimeoutError)
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert flavour.call(fn, "last") == "last"
    assert ["hopeless"] not in gate.batches
    stats = fn.stats
    assert (stats.total_refused, stats.total_accepted) == (1, 7)


def test_of_a_call_that_is_refused_each_item_counts(flavour: Flavour) -> None:
    """Also those that a cache knows, as its caller gets none of them."""
    gate, fn, first = held(flavour, cache={"known": 1})
    with pytest.raises(OverloadError):
        flavour.call(fn.options(deadline_ms=0.01), ["known", "hopeless", "known"])
    assert (fn.stats.total_refused, fn.stats.total_cached) == (3, 0)
    gate.open()
    assert first.result(PATIENCE_S) == "first"


def test_the_expected_wait_is_not_known_at_first_and_grows_with_what_waits(flavour: Flavour) -> None:
    """And with the items of the call."""
    fresh = flavour.decorate(Gate())
    assert fresh.expected_wait_ms() is None
    with pytest.raises(ValueError, match="items must be at least 1, got 0"):
        fresh.expected_wait_ms(0)
    gate, fn, first = held(flavour)
    alone, many = fn.expected_wait_ms(), fn.expected_wait_ms(100)
    assert 0.0 < alone < many
    waiting = [flavour.start(fn, item) for item in range(100)]
    assert fn.expected_wait_ms() > alone
    gate.open()
    assert [future.result(PATIENCE_S) for future in (first, *waiting)] == ["first", *range(100)]


def test_every_call_has_the_deadline_of_the_decorator_unless_it_says_otherwise(flavour: Flavour) -> None:
    """Also one of None."""
    gate, fn, first = held(flavour, default_deadline_ms=60_000)
    with pytest.raises(TimeoutError, match="deadline_ms=30"):
        flavour.call(fn.options(deadline_ms=30), "late")
    patient = flavour.start(fn.options(deadline_ms=None), "patient")
    again = flavour.start(fn.options(deadline_ms=None).options(deadline_ms="default"), "again")
    gate.open()
    assert [future.result(PATIENCE_S) for future in (first, patient, again)] == ["first", "patient", "again"]
    shut = Gate(shut=True)
    short = flavour.decorate(shut, default_deadline_ms=30, timeout_ms=0, batch_size=1, name="short")
    running = flavour.start(short.options(deadline_ms=None), "running")
    shut.wait_for_batch()
    late = flavour.start(short, "late")
    with pytest.raises(TimeoutError, match="short did not answer within deadline_ms=30"):
        late.result(PATIENCE_S)
    shut.open()
    assert running.result(PATIENCE_S) == "running"
