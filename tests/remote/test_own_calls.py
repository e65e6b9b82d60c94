"""Calls that the process of a server makes of its functions: they share the batches of clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of
from tests.kit.serving import served

TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


def queued(fn: Any, number: int) -> None:
    """Wait until so many items wait for `fn`."""
    until(lambda: fn.stats.queue_size == number)


def answers(futures: list[Future[Any]]) -> list[Any]:
    """Return the answers of `futures`."""
    return [each.result(PATIENCE_S) for each in futures]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Provide a batch function that holds its batches."""
    found = Gate(shut=True)
    yield found
    found.open()


def test_a_call_shares_the_batches_of_clients(gate: Gate) -> None:
    """There is one queue, and one batch at a time."""
    fn = batched.dynamically(gate, timeout_ms=0, name="fn")
    with served(fn) as server:
        client = server.connect().fn
        futures = [client.submit(0)]
        gate.wait_for_batch()
        futures += [fn.submit(1), client.submit(2), fn.submit(3)]
        queued(fn, 3)
        assert len(gate.batches) == 1
        gate.open()
        assert answers(futures) == [0, 1, 2, 3]
        assert [sorted(batch) for batch in gate.batches] == [[0], [1, 2, 3]]
        assert fn.stats == client.stats
        assert fn.stats.total_batches == 2


def kinds() -> dict[str, tuple[dict[str, Any], Callable[[Any], Any]]]:
    """Return options for each kind of queue, and what an item is there."""
    return {
        "plain": ({}, lambda item: item),
        "of several keys": ({"group_by": lambda item: item % 2}, lambda item: item),
        "by length": ({"length": len, "max_batch_length": 1000}, lambda item: "x" * (item + 1)),
        "with a bound": ({"max_queue_size": 4, "on_full": "wait"}, lambda item: item),
        "with a cache": ({"cache": {}}, lambda item: item),
    }


@pytest.mark.parametrize("kind", kinds())
def test_calls_that_wait_when_the_server_starts_share_batches_too(kind: str, gate: Gate) -> None:
    """Single items, lists, and calls that wait for room; each is answered once."""
    options, item = kinds()[kind]
    fn = batched.dynamically(gate, timeout_ms=0, name="fn", batch_size=4, small_batch_threshold=2, **options)
    most = options.get("max_queue_size", 9)
    unanswered = driver_of(fn).batcher.unanswered_calls
    with ThreadPoolExecutor() as pool:
        own = [item(0), item(1), [item(at) for at in range(2, 5)], item(5)]
        futures = [pool.submit(fn, own[0])]
        gate.wait_for_batch()
        for call, number in zip(own[1:], (1, 4, 5), strict=True):
            futures.append(pool.submit(fn, call))
            until(lambda: sum(each.size for each in unanswered()) == 1 + number)
            queued(fn, min(number, most))
        with served(fn) as server:
            client = server.connect().fn
            theirs = [client.submit(item(6)), client.submit([item(7), item(8)])]
            queued(fn, min(8, most))
            gate.open()
            assert answers(futures) == own
            assert answers(theirs) == [item(6), [item(7), item(8)]]
    assert sorted(row for batch in gate.batches for row in batch) == sorted(map(item, range(9)))
    stats = fn.stats
    assert (stats.total_accepted, stats.total_processed, stats.queue_size) == (9, 9, 0)


@pytest.mark.parametrize("options", [{}, {"cache": {}}, {"group_by": len}], ids=["plain", "cache", "key"])
def test_calls_of_the_process_are_one_tenant(options: dict[str, Any], gate: Gate) -> None:
    """A client with many calls does not hold them up; nor do they hold up a client."""
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0, name="fn", **options)
    with served(fn) as server:
        client = server.connect().fn
        futures = [fn.submit("first")]
        gate.wait_for_batch()
        futures += [client.submit(f"theirs {at}") for at in range(10)]
        queued(fn, 10)
        futures += [fn.submit(f"my own {at}") for at in range(10)]
        queued(fn, 20)
        gate.open()
        answers(futures)
        for batch in gate.batches[1:]:
            assert {row.split()[0] for row in batch} == {"theirs", "my"}


@pytest.mark.parametrize(
    "options", [{}, {"cache": {}}, {"fair_by": TENANT.get}, {"group_by": type, "cache": {}}]
)
def test_each_client_is_a_tenant_whatever_is_in_front_of_the_queue(options: Any, gate: Gate) -> None:
    """One with many calls does not hold up another one."""
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=0, name="fn", **options)
    with served(fn) as server:
        one, other = server.connect().fn, server.connect().fn
        futures = [one.submit("first")]
        gate.wait_for_batch()
        for each, name in ((one, "one"), (other, "two"), (fn, "own")):
            futures += [each.submit(f"{name} {at}") for at in range(4)]
            queued(fn, len(futures) - 1)
        gate.open()
        answers(futures)
        for batch in gate.batches[1:]:
            assert {row.split()[0] for row in batch} == {"one", "two", "own"}


def test_an_item_of_a_long_list_is_asked_for_by_others(gate: Gate) -> None:
    """Such a list was read before the function had tenants, or is of the process, which has none."""
    fn = batched.dynamically(gate, batch_size=100, timeout_ms=0, name="fn", cache={})
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(fn, -1)]
        gate.wait_for_batch()
        futures.append(pool.submit(fn, [*range(80)]))
        queued(fn, 80)
        with served(fn) as server:
            client = server.connect().fn
            futures.append(pool.submit(fn, [*range(80, 160)]))
            queued(fn, 160)
            futures += [fn.submit(1), client.submit(2), fn.submit(81), client.submit(82)]
            queued(fn, 164)
            gate.open()
            assert answers(futures) == [-1, [*range(80)], [*range(80, 160)], 1, 2, 81, 82]


def test_a_list_of_the_process_is_not_late_for_what_waits_of_a_client(gate: Gate) -> None:
    """It takes turns with that, also where the list is divided."""
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, name="fn", length=len, max_batch_length=1000)
    with served(fn) as server:
        client = server.connect().fn
        futures = [client.submit("first")]
        gate.wait_for_batch()
        futures += [client.submit(f"client {at}") for at in range(40)]
        queued(fn, 40)
        queue, collator = driver_of(fn).batcher.queue, driver_of(fn).collator
        one, several = (collator.read(fn, (each,), {}, 0.0) for each in ("own", ["own", "own too"]))
        assert several.is_divided
        assert queue.ahead(1, one, large=False) < 40
        assert queue.ahead(2, several, large=False) < 40
        gate.open()
        answers(futures)


def test_a_fair_by_of_the_function_goes_on_for_calls_of_the_process(gate: Gate) -> None:
    """Clients are tenants besides: in the context of a caller that is not here, it is not asked."""
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=0, name="fn", fair_by=TENANT.get)
    with served(fn) as server:
        client = server.connect().fn
        futures = [fn.submit("first")]
        gate.wait_for_batch()
        for tenant in ("a", "b"):
            TENANT.set(tenant)
            futures += [fn.submit(f"{tenant} {at}") for at in range(4)]
        futures += [client.submit(f"client {at}") for at in range(4)]
        queued(fn, 12)
        gate.open()
        answers(futures)
        for batch in gate.batches[1:]:
            assert {row.split()[0] for row in batch} == {"a", "b", "client"}


def test_a_fair_by_that_takes_an_item_is_asked_for_both(gate: Gate) -> None:
    """Calls of one tenant are of one, wherever they come from."""
    fn = batched.dynamically(
        gate, batch_size=2, timeout_ms=0, name="fn", fair_by=lambda item: item.split()[0]
    )
    with served(fn) as server:
        client = server.connect().fn
        futures = [fn.submit("first")]
        gate.wait_for_batch()
        futures += [each.submit(f"a {at}") for at in range(4) for each in (fn, client)]
        futures += [each.submit(f"b {at}") for at in range(4) for each in (fn, client)]
        queued(fn, 16)
        gate.open()
        answers(futures)
        for batch in gate.batches[1:]:
            assert {row.split()[0] for row in batch} == {"a", "b"}


def test_equal_items_share_a_run_and_a_cache(gate: Gate) -> None:
    """An item that a client asks for while a call of the process has it run; and later ones."""
    fn = batched.dynamically(gate, timeout_ms=0, name="fn", cache={})
    with served(fn) as server:
        client = server.connect().fn
        own = fn.submit(1)
        gate.wait_for_batch()
        theirs = [client.submit(1), client.submit(2)]
        queued(fn, 1)
        gate.open()
        assert answers([own, *theirs]) == [1, 1, 2]
        assert (client(1), fn(2)) == (1, 2)
        assert gate.batches == [[1], [2]]


def test_an_equal_item_of_a_client_that_waits_long_runs_for_the_process_too(gate: Gate) -> None:
    """In its own turn; behind its own calls, it is waited for."""
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0, name="fn", cache={})
    with served(fn) as server:
        client = server.connect().fn
        futures = [client.submit(-1)]
        gate.wait_for_batch()
        futures += [client.submit(at) for at in range(80)]
        queued(fn, 80)
        futures += [fn.submit(79), fn.submit(79)]
        queued(fn, 81)
        gate.open()
        assert answers(futures) == [-1, *range(80), 79, 79]
        assert 79 in gate.batches[1]
        assert sum(batch.count(79) for batch in gate.batches) == 2


class Model:
    """A model with a batched method."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @batched.dynamically(timeout_ms=0, cache={})
    def run(self, items: list[int]) -> list[int]:
        """Run it."""
        found: list[int] = self.gate(items)
        return found


def test_so_do_calls_of_a_method(gate: Gate) -> None:
    """Of the same instance, whichever view of it they have."""
    model = Model(gate)
    with served(model.run) as server:
        client = server.connect().run
        futures = [client.submit(0)]
        gate.wait_for_batch()
        futures += [model.run.submit(1), client.submit(2), client.submit(1)]
        queued(model.run, 2)
        gate.open()
        assert answers(futures) == [0, 1, 2, 1]
        assert [sorted(batch) for batch in gate.batches] == [[0], [1, 2]]
        model.run.configure(batch_size=7)
        assert client.options(deadline_ms=60_000)(3) == 3
    assert model.run([4, 5]) == [4, 5]


def test_the_function_goes_on_when_its_server_has_ended(gate: Gate) -> None:
    """And may be served again, by two servers at once too."""
    gate.open()
    fn = batched.dynamically(gate, timeout_ms=0, name="fn")
    with served(fn) as server:
        assert server.connect().fn(1) == 1
    assert fn(2) == 2
    with served(fn) as first, served(fn) as second:
        assert [server.connect().fn(3) for server in (first, second)] == [3, 3]
        assert fn(4) == 4
    assert fn.stats.total_processed == 5


def test_a_function_can_be_served_any_number_of_times() -> None:
    """Nothing is left of a server that has ended: here a queue that is made of that of the one before."""

    @batched.aio.dynamically(timeout_ms=0)
    async def fn(items: list[int]) -> list[int]:
        return items

    driver = driver_of(fn)
    for _ in range(sys.getrecursionlimit()):
        driver.take_turns()
    assert asyncio.run(fn.acall(1)) == 1


def test_a_server_does_not_wait_for_a_stream_of_its_process(gate: Gate) -> None:
    """A batch that is refilled goes on for as long as calls of the process join it."""

    @batched.dynamically(timeout_ms=0, continuous=True)
    def fn(items: list[int]) -> Iterator[list[int]]:
        yield items
        gate(items)
        yield items

    with served(fn) as server:
        assert next(server.connect().fn.stream(0)) == 0
        gate.let_through()
        gate.wait_for_batch()
        pieces = fn.stream(1)
        assert next(pieces) == 1
        gate.wait_for_batch()
    gate.open()
    assert [*pieces] == [1]


def test_an_end_of_the_function_is_one_for_clients() -> None:
    """It takes no more calls, of any process."""
    fn = batched.dynamically(Gate(), timeout_ms=0, name="fn")
    with served(fn) as server:
        client = server.connect().fn
        assert client(1) == 1
        fn.shutdown()
        with pytest.raises(batched.ClosedError, match="fn was shut down and takes no more calls"):
            client(2)


def test_calls_on_other_event_loops_go_on_as_they_were() -> None:
    """Each loop has a queue of its own, that of the server too."""
    entered = []

    @batched.aio.dynamically(timeout_ms=0)
    async def fn(items: list[int]) -> list[int]:
        entered.append(items)
        return items

    async def ask(client: Any) -> list[int]:
        async with asyncio.timeout(PATIENCE_S):
            return [await fn(1), await client.acall(2), await fn(3)]

    with served(fn) as server:
        assert asyncio.run(ask(server.connect().fn)) == [1, 2, 3]
    assert entered == [[1], [2], [3]]
    assert fn.stats.total_processed == 3


def test_a_function_of_another_server_is_not_served() -> None:
    """Its clients would be one client there; they can connect to that server."""
    fn = batched.dynamically(Gate(), timeout_ms=0, name="fn")
    with served(fn) as server:
        remote = server.connect().fn
        with pytest.raises(TypeError, match="fn runs in another server, .*: connect to that"):
            batched.serve(remote, bind="unix:/tmp/never.sock")
