"""`on_batch` is told of each batch, once, after it has run; neither callers nor batches wait for it."""

from __future__ import annotations

import asyncio
import shlex
import threading
from typing import Any

import pytest

import batched
from batched._drivers import telling
from batched._drivers.listeners import ignore, listen
from batched.logging import fields, log_batch
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until

RECORD = batched.BatchRecord(
    name="f",
    size=1,
    calls=1,
    reason="callers back",
    waited_ms=0.0,
    waits_ms=(0.0,),
    took_ms=1.0,
    failed=0,
    item_error=None,
    error=None,
    runs_again=False,
    padding=0.0,
)


def double(items: list[int]) -> list[int]:
    """Return twice each item."""
    return [item * 2 for item in items]


def test_each_batch_is_told_once(flavour: Flavour) -> None:
    """With its size, its calls, why it started, and how long it took."""
    told: list[batched.BatchRecord] = []
    fn = flavour.decorate(double, batch_size=2, timeout_ms=0, on_batch=told.append, name="double")
    assert flavour.call(fn, [1, 2, 3]) == [2, 4, 6]
    assert flavour.call(fn, 4) == 8
    flavour.close(fn)
    until(lambda: len(told) == 3)
    assert [(each.name, each.size, each.calls) for each in told] == [
        ("double", size, 1) for size in (2, 1, 1)
    ]
    assert told[0].reason == "full"
    assert all(each.waited_ms >= 0 and each.took_ms >= 0 and each.error is None for each in told)
    assert all(each.waits_ms == (each.waited_ms,) for each in told)


def test_the_wait_of_each_call_is_told_once(flavour: Flavour) -> None:
    """Not again with a part of its batch, which runs as another call has failed."""
    told: list[batched.BatchRecord] = []
    gate = Gate(lambda items: [1 / item for item in items], shut=True)
    fn = flavour.decorate(gate, timeout_ms=0, on_batch=told.append)
    futures = [flavour.start(fn, 1)]
    gate.wait_for_batch()
    futures += [flavour.start(fn, item) for item in (1, 0, 1)]
    gate.open()
    assert [future.exception(PATIENCE_S) is None for future in futures] == [True, True, False, True]
    flavour.close(fn)
    until(lambda: sum(not each.runs_again for each in told) >= 3)
    assert [len(each.waits_ms) for each in told[:2]] == [1, 3]
    assert [each.waited_ms for each in told[:2]] == [max(each.waits_ms) for each in told[:2]]
    assert [each.waits_ms for each in told[2:]] == [() for each in told[2:]]
    assert {each.reason for each in told[2:]} == {"retry"}


def test_all_functions_can_be_told_of(flavour: Flavour) -> None:
    """Those that have run before, and those that are decorated later; until it is ignored."""
    told: list[batched.BatchRecord] = []
    own: list[batched.BatchRecord] = []
    before = flavour.decorate(double, timeout_ms=0, name="before")
    assert flavour.call(before, 0) == 0
    listen(told.append)
    try:
        after = flavour.decorate(double, timeout_ms=0, name="after", on_batch=own.append)
        assert flavour.call(before, 1) == 2
        assert flavour.call(after, 2) == 4
        until(lambda: len(told) == 2)
    finally:
        ignore(told.append)
    assert flavour.call(before, 3) == 6
    assert flavour.call(after, 4) == 8
    for fn in (before, after):
        flavour.close(fn)
    until(lambda: len(own) == 2)
    assert sorted(record.name for record in told) == ["after", "before"]


def test_errors_are_told(flavour: Flavour) -> None:
    """That of the function, and that of an item that failed alone."""
    told: list[batched.BatchRecord] = []

    def some_fail(items: list[int]) -> list[Any]:
        if 13 in items:
            raise ValueError(items)
        return [ValueError(item) if item == 7 else item for item in items]

    fn = flavour.decorate(some_fail, timeout_ms=0, on_batch=told.append)
    with pytest.raises(ValueError, match="13"):
        flavour.call(fn, 13)
    with pytest.raises(ValueError, match="7"):
        flavour.call(fn, [7, 8])
    assert repr(flavour.call(fn.options(return_exceptions=True), [8, 7])) == "[8, ValueError(7)]"
    assert repr(flavour.call(fn.options(return_exceptions=True), 7)) == "ValueError(7)"
    flavour.close(fn)
    until(lambda: len(told) == 4)
    assert isinstance(told[0].error, ValueError)
    assert told[0].item_error is None
    for record in told[1:]:
        assert record.error is None
        assert (record.failed, repr(record.item_error)) == (1, "ValueError(7)")


def test_a_slow_or_failing_on_batch_holds_nothing_up(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers have their answers meanwhile; a failure is logged once."""
    begun, may_end = threading.Event(), threading.Event()

    def fail(_: batched.BatchRecord) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        raise KeyError("of on_batch")

    fn = flavour.decorate(double, timeout_ms=0, on_batch=fail)
    assert flavour.call(fn, 1) == 2
    assert begun.wait(PATIENCE_S)
    assert flavour.call(fn, 2) == 4
    may_end.set()
    flavour.close(fn)
    until(lambda: "of on_batch" in caplog.text)
    assert caplog.text.count("on_batch failed") == 1


def test_a_shutdown_waits_until_all_is_told() -> None:
    """So a program that ends has all of its lines."""
    told: list[batched.BatchRecord] = []
    fn = batched.dynamically(double, batch_size=1, timeout_ms=0, on_batch=told.append)
    fn([1, 2, 3])
    fn.shutdown()
    assert len(told) == 3


@pytest.mark.parametrize("how", ["shutdown", "aclose", "aio"])
def test_a_function_may_be_closed_by_what_is_told_of_its_batches(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It does not wait for itself until the time is up that a listener has."""
    monkeypatch.setattr(telling, "_LONGEST_S", 3 * PATIENCE_S)
    closed = threading.Event()

    def close(_: batched.BatchRecord) -> None:
        if how == "shutdown":
            fn.shutdown()
        else:
            asyncio.run(fn.aclose())
        closed.set()

    async def same(items: list[int]) -> list[int]:
        return items

    fn: Any
    if how == "aio":
        fn = batched.aio.dynamically(same, timeout_ms=0, on_batch=close)
        assert asyncio.run(fn(1)) == 1
    else:
        fn = batched.dynamically(double, timeout_ms=0, on_batch=close)
        assert fn(1) == 2
    assert closed.wait(PATIENCE_S)


def test_padding_is_told() -> None:
    """As a share of what the function was given."""
    np = pytest.importorskip("numpy")
    told: list[batched.BatchRecord] = []
    fn = batched.inference.dynamically(
        lambda features: features["x"].sum(axis=1), timeout_ms=0, on_batch=told.append
    )
    fn({"x": [np.ones(4), np.ones(1)]})
    fn.shutdown()
    assert told[0].padding == pytest.approx(3 / 8)


def test_the_log_has_a_line_for_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Its fields are those of the log's record, too."""
    caplog.set_level("DEBUG", "batched.batches")
    fn = batched.dynamically(double, timeout_ms=0, on_batch=log_batch, name="double")
    fn(1)
    fn.shutdown()
    (line,) = caplog.records
    assert line.levelname == "DEBUG"
    assert "batch_function=double batch_size=1 batch_calls=1" in line.getMessage()
    assert line.batch_size == 1


def test_a_line_of_the_log_can_be_taken_apart(caplog: pytest.LogCaptureFixture) -> None:
    """By what reads `name=value`: a name, or a reason such as "callers back", may have spaces."""
    caplog.set_level("DEBUG", "batched.batches")
    fn = batched.dynamically(double, timeout_ms=0, on_batch=log_batch, name='the "best" model=1\nof two')
    fn(1)
    fn.shutdown()
    (line,) = caplog.records
    found = dict(part.split("=", 1) for part in shlex.split(line.getMessage()))
    assert found.pop("batch_function") == 'the "best" model=1\\nof two'
    assert {*found} == {name for name in vars(line) if name.startswith("batch_")} - {"batch_function"}
    log_batch(RECORD)
    assert 'batch_reason="callers back" batch_waited_ms=0.0 ' in caplog.records[-1].getMessage()


def test_a_batch_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """With the type of the error."""

    def fail(items: list[int]) -> list[int]:
        raise ValueError(items)

    fn = batched.dynamically(fail, timeout_ms=0, on_batch=log_batch)
    with pytest.raises(ValueError, match="1"):
        fn(1)
    fn.shutdown()
    (line,) = [each for each in caplog.records if each.name == "batched.batches"]
    assert (line.levelname, line.batch_error) == ("WARNING", "ValueError")
    assert fields(RECORD)["batch_error"] is None


def test_a_batch_that_fails_has_the_size_it_ran_with_though_its_callers_have_left(flavour: Flavour) -> None:
    """In `stats` too: an item was in it though its caller left meanwhile. Nothing of it runs again."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    told: list[batched.BatchRecord] = []

    def fails(items: list[int]) -> list[int]:
        raise ValueError(items)

    gate = Gate(fails, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000, on_batch=told.append)
    futures = [flavour.start(fn, item) for item in range(3)]
    gate.wait_for_batch()
    for future in futures:
        flavour.cancel(future)
    gate.open()
    until(lambda: fn.stats.total_processed == 3)
    flavour.close(fn)
    until(lambda: len(told) == 1)
    assert (told[0].size, told[0].calls, len(told[0].waits_ms)) == (3, 3, 3)
    assert (fn.stats.batch_size.min, fn.stats.batch_size.max) == (3, 3)
    assert gate.batches == [[0, 1, 2]]
