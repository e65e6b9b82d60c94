"""`fair_by`: tenants share batches evenly."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

from batched import BatchError, QueueFullError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import batchers
from tests.kit.stats import check_sums

TENANT: ContextVar[str] = ContextVar("TENANT")


def held(flavour: Flavour, **options: Any) -> tuple[Gate, Any, Any]:
    """Return a gate that holds a batch, its function, and the first call."""
    gate = Gate(shut=True)
    if "cache" in options:
        options["cache"] = {}
    fn = flavour.decorate(gate, **{"batch_size": 8, "timeout_ms": 0, "adaptive": False, **options})
    first = flavour.start(fn, ("first", 0))
    gate.wait_for_batch()
    return gate, fn, first


def tenant_of(item: tuple[str, int]) -> str:
    """Return the tenant that an item names."""
    return item[0]


@pytest.mark.parametrize("options", [{}, {"group_by": lambda _: 0}, {"cache": True}, {"length": lambda _: 1}])
def test_a_quiet_tenant_is_in_the_next_batch(flavour: Flavour, options: dict[str, Any]) -> None:
    """And has its own answer, whatever another has sent before; so has a list."""
    gate, fn, first = held(flavour, fair_by=tenant_of, **options)
    futures = [flavour.start(fn, ("flood", number)) for number in range(40)]
    quiet = flavour.start(fn, ("quiet", 0))
    items = [("third", number) for number in range(3)]
    listed = flavour.start(fn, items)
    gate.open()
    assert quiet.result(PATIENCE_S) == ("quiet", 0)
    assert listed.result(PATIENCE_S) == items
    assert [future.result(PATIENCE_S) for future in (first, *futures)] == [
        ("first", 0),
        *(("flood", number) for number in range(40)),
    ]
    assert Counter(map(tenant_of, gate.batches[1])) == {"flood": 4, "quiet": 1, "third": 3}


@pytest.mark.parametrize("ask", [TENANT.get, lambda: TENANT.get()], ids=["get", "function"])
@pytest.mark.parametrize("option", ["fair_by", "group_by"])
def test_a_function_of_no_argument_is_asked_in_the_caller_s_context(
    flavour: Flavour, option: str, ask: Any
) -> None:
    """As of a context variable: an error of it is for that caller alone."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0, **{option: ask})
    with pytest.raises(BatchError, match=f"{option} failed: LookupError"):
        flavour.call(fn, 1)

    async def in_task() -> Any:
        TENANT.set("a")
        return await (fn.acall([1, 2]) if hasattr(fn, "acall") else fn([1, 2]))

    def in_thread() -> Any:
        token = TENANT.set("a")
        try:
            return fn([1, 2])
        finally:
            TENANT.reset(token)

    run: Any = getattr(flavour, "run", None)
    assert (run(in_task()) if run is not None else in_thread()) == [1, 2]
    flavour.close(fn)


@pytest.mark.parametrize("answer", [ZeroDivisionError(), []], ids=["raises", "not hashable"])
def test_an_error_is_for_its_caller_alone(flavour: Flavour, answer: Any) -> None:
    """At the door; neighbours go on."""

    def fair_by(item: Any) -> Any:
        if item == "bad" and isinstance(answer, Exception):
            raise answer
        return answer if item == "bad" else item

    gate = Gate(shut=True)
    fn = flavour.decorate(gate, fair_by=fair_by, timeout_ms=0)
    good = flavour.start(fn, "good")
    gate.wait_for_batch()
    other = flavour.start(fn, "other")
    with pytest.raises(BatchError, match="fair_by failed"):
        flavour.call(fn, "bad")
    gate.open()
    assert (good.result(PATIENCE_S), other.result(PATIENCE_S)) == ("good", "other")


def test_elements_of_a_map_and_columns_have_tenants(flavour: Flavour) -> None:
    """A function of several columns is asked with all of them."""
    fn = flavour.decorate(lambda xs, ys: list(zip(xs, ys, strict=True)), fair_by=lambda x, y: (x, y))
    assert flavour.call(fn, 1, 2) == (1, 2)
    assert flavour.map(fn, range(50), range(50)) == [(number, number) for number in range(50)]


def test_arrays_have_the_tenant_of_their_features(flavour: Flavour) -> None:
    """As for `group_by`."""
    asked = []
    fn = flavour.decorate_arrays(
        lambda features: features["x"], fair_by=lambda features: asked.append([*features])
    )
    assert flavour.call(fn, {"x": np.ones((3, 2))}).shape == (3, 2)
    assert asked == [["x"]]


@pytest.mark.parametrize("options", [{}, {"group_by": lambda _: 0}, {"cache": True}])
def test_who_floods_a_bounded_queue_is_refused_first(flavour: Flavour, options: dict[str, Any]) -> None:
    """Its newest call, for a tenant that has less; no caller is left without an answer."""
    gate, fn, first = held(flavour, fair_by=tenant_of, max_queue_size=4, **options)
    flood = [flavour.start(fn, ("flood", number)) for number in range(4)]
    quiet = [flavour.start(fn, ("quiet", number)) for number in range(2)]
    for number in (3, 2):
        with pytest.raises(QueueFullError, match="fair_by"):
            flood[number].result(PATIENCE_S)
    for tenant in ("flood", "quiet"):
        with pytest.raises(QueueFullError, match="no room"):
            flavour.call(fn, (tenant, 9))
    gate.open()
    for future in (first, *flood[:2], *quiet):
        future.result(PATIENCE_S)
    assert fn.stats.total_rejected == 4


def test_a_refusal_for_another_tenant_lowers_no_total_and_says_when_to_come_back(flavour: Flavour) -> None:
    """As any refusal: a time, and the option that bounds the queue. What was accepted stays accepted."""
    gate, fn, first = held(flavour, fair_by=tenant_of, max_queue_size=4, batch_size=1)
    gate.let_through(10)
    for number in range(9):  # then what batches take is known
        flavour.call(fn, ("warm up", number))
    first.result(PATIENCE_S)
    gate.shut_again()
    busy = flavour.start(fn, ("flood", 0))
    gate.wait_for_batch()
    flood = [flavour.start(fn, [("flood", number)] * 2) for number in (1, 2)]
    before = fn.stats
    quiet = flavour.start(fn, ("quiet", 0))
    with pytest.raises(QueueFullError, match=r"max_queue_size=4.*of 2 items.*fair_by") as refused:
        flood[1].result(PATIENCE_S)
    assert refused.value.retry_after_s is not None
    after = fn.stats
    assert (after.total_rejected - before.total_rejected, after.total_cancelled) == (2, 2)
    assert after.total_accepted == before.total_accepted + 1
    gate.open()
    for future in (busy, flood[0], quiet):
        future.result(PATIENCE_S)
    check_sums(fn)


def test_a_list_of_which_a_part_has_run_is_not_refused_for_another_tenant(flavour: Flavour) -> None:
    """Its work would be lost: the newest call of which nothing has run is refused in its place."""
    gate, fn, _ = held(
        flavour, fair_by=tenant_of, max_queue_size=3, batch_size=1, group_by=lambda item: item[1]
    )
    other = flavour.start(fn.options(priority="bulk"), ("flood", 3))
    begun = flavour.start(fn, [("flood", 1), ("flood", 2)])
    gate.let_through()
    gate.wait_for_batch()
    assert gate.batches[-1] == [("flood", 1)]
    others = [flavour.start(fn, (tenant, 0)) for tenant in ("quiet", "calm")]
    with pytest.raises(QueueFullError, match="fair_by"):
        other.result(PATIENCE_S)
    gate.open()
    assert begun.result(PATIENCE_S) == [("flood", 1), ("flood", 2)]
    for future in others:
        future.result(PATIENCE_S)


def test_no_more_calls_are_refused_for_another_tenant_than_need_be(flavour: Flavour) -> None:
    """A list of several keys makes room with all of its items: no call of a third tenant is refused too."""
    gate, fn, first = held(flavour, fair_by=tenant_of, max_queue_size=12, group_by=lambda item: item[1] % 3)
    flood = flavour.start(fn, [("flood", number) for number in range(6)])
    calm = flavour.start(fn, [("calm", 0)] * 5)
    quiet = flavour.start(fn, [("quiet", 0)] * 4)
    with pytest.raises(QueueFullError, match=r"of 6 items.*fair_by"):
        flood.result(PATIENCE_S)
    gate.open()
    assert calm.result(PATIENCE_S) == [("calm", 0)] * 5
    for future in (first, quiet):
        future.result(PATIENCE_S)
    assert fn.stats.total_rejected == 6


@pytest.mark.parametrize("cached", [{}, {"cache": True}], ids=["of the request", "both"])
def test_what_several_calls_of_a_request_wait_for_is_not_refused_for_another_tenant(
    flavour: Flavour, cached: dict[str, Any]
) -> None:
    """The newest call for which no other waits is refused in its place."""
    gate, fn, first = held(
        flavour, fair_by=tenant_of, max_queue_size=3, cache_key=lambda item: item[1], **cached
    )
    load = fn.options(request_cache={})
    flood = [flavour.start(load, ("flood", number)) for number in (1, 2, 3)]
    shared = flavour.start(load, ("calm", 3))
    quiet = flavour.start(fn, ("quiet", 4))
    with pytest.raises(QueueFullError, match="fair_by"):
        flood[1].result(PATIENCE_S)
    gate.open()
    for future in (first, flood[0], flood[2], shared, quiet):
        future.result(PATIENCE_S)


def test_nothing_is_kept_of_tenants(flavour: Flavour) -> None:
    """Once no call waits."""
    fn = flavour.decorate(lambda items: items, fair_by=tenant_of, timeout_ms=0)
    futures = [flavour.start(fn, (f"tenant {number}", 0)) for number in range(20)]
    for future in futures:
        future.result(PATIENCE_S)
    for batcher in batchers(fn):
        assert len(batcher.queue.tenants) == 0
