"""What a client holds: a function as any other, which can be passed on, ended here, and asked for figures."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import math
import pickle
import pydoc
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

import batched
from batched._remote.function import RemoteFunction
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.remote_server import serving
from tests.kit.script import ROOT
from tests.kit.serving import HAS_UNIX, Served, folder, served

NUMBERS = count()
TENANT: ContextVar[Any] = ContextVar("TENANT", default="none")


@batched.dynamically(timeout_ms=0, batch_sizes=[1, 2, 4])
def double(items: list[int]) -> list[int]:
    """Return the doubles."""
    return [2 * item for item in items]


@pytest.fixture
def server() -> Iterator[Served]:
    """Serve `double`."""
    with served(double) as found:
        yield found


def test_it_is_a_decorated_function_that_says_where_it_is(server: Served) -> None:
    """With all ways to call, a name, a signature and help."""
    fn = server.connect().double
    assert isinstance(fn, batched.BatchedFunction)
    assert (fn.__name__, fn.__doc__) == ("double", f"Call double of the server at {server.address}.")
    assert repr(fn) == f"<batched double of {server.address}>"
    assert repr(fn.options(deadline_ms=5)).endswith(", deadline_ms=5>")
    assert str(inspect.signature(fn)) == "(*args, **named)"
    assert f"Call double of the server at {server.address}." in pydoc.plain(pydoc.render_doc(fn))
    with pytest.raises(TypeError, match="runs in its server"):
        fn.__wrapped__([1])


def test_it_is_equal_to_its_copies_and_views_with_the_same_options(server: Served) -> None:
    """All of one client share what waits, and `shutdown`."""
    client = server.connect()
    fn = client.double
    assert fn is client.double is client["double"]
    assert copy.copy(fn) is fn
    assert copy.deepcopy([fn, fn])[1] is fn
    assert fn.options(priority="bulk") == fn.options(priority="bulk") != fn
    assert fn.options(priority="bulk").options(priority=None) == fn
    assert len({fn, fn.options(priority=None), client.double}) == 1
    assert fn != server.connect(wait_s=9).double
    assert fn != double


def test_in_a_class_it_is_no_method(server: Served) -> None:
    """It takes the arguments that it is given."""

    class Handler:
        embed = server.connect().double

    assert Handler().embed(2) == Handler.embed(2) == 4


def test_a_pickle_of_it_connects_where_it_is_unpickled(server: Served) -> None:
    """In this process it shares the connections; options go along."""
    fn = server.connect().double.options(deadline_ms=5000.0)
    again = pickle.loads(pickle.dumps(fn))
    assert again == fn
    assert again(2) == 4
    script = f"""
import pickle
fn = pickle.loads({pickle.dumps(fn)!r})
print(fn(4), fn == fn.options(deadline_ms=5000.0))
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert found.stdout == "8 True\n"


def test_a_pickle_of_a_client_connects_where_it_is_unpickled(server: Served) -> None:
    """As a function does; in this process it shares the connections. A copy is the client itself."""
    client = server.connect()
    again = pickle.loads(pickle.dumps(client))
    assert again.double == client.double
    assert copy.copy(client) is copy.deepcopy([client])[0] is client
    script = f"import pickle; print(pickle.loads({pickle.dumps(client)!r}).double(4))"
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert found.stdout == "8\n"
    client.close()
    with pytest.raises(batched.ClosedError):
        client.double(1)
    with pickle.loads(pickle.dumps(client)) as fresh:
        assert fresh.double(5) == 10


@pytest.mark.skipif(not HAS_UNIX, reason="needs unix sockets")
def test_a_pickle_names_the_server_wherever_it_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket may be relative to the folder in which the client was made."""
    other = batched.dynamically(lambda items: [3 * item for item in items], timeout_ms=0)
    with (
        folder() as at,
        folder() as elsewhere,
        serving(f"unix:{at}/s", functions={"double": double}),
        serving(f"unix:{elsewhere}/s", functions={"double": other}),
    ):
        made = []
        for each in (at, elsewhere):
            monkeypatch.chdir(each)
            made.append(batched.connect("unix:s").double)
        monkeypatch.chdir("/")
        again = pickle.loads(pickle.dumps(made))
        assert [fn(5) for fn in made] == [fn(5) for fn in again] == [10, 15]
        assert again == made


def test_functions_of_pickles_share_connections_beside_a_client_that_was_closed(server: Served) -> None:
    """The first of them connects anew, and the others find its connections."""
    client = server.connect()
    pickled = pickle.dumps(client.double)
    client.close()
    first, second = (pickle.loads(pickled) for _ in range(2))
    assert first(4) == second(4) == 8
    assert first == second


def test_what_only_a_server_can_do_is_refused_with_the_remedy(server: Served) -> None:
    """From threads and from tasks."""
    fn = server.connect().double
    for refused in (
        lambda: fn.configure(batch_size=2),
        lambda: fn.configure(max_batch_length=2),
        lambda: fn.warm_up(1),
        lambda: asyncio.run(fn.awarm_up(1)),
    ):
        with pytest.raises(TypeError, match="server"):
            refused()
    with pytest.raises(TypeError, match="py-spy"):
        fn.worker_stack()
    with pytest.raises(TypeError, match=r"request_cache .*double.* Decorate a function of this process"):
        fn.options(request_cache={})


def test_what_is_configured_in_the_process_of_the_server_holds_for_clients() -> None:
    """Before the function is served, and while it is, in each server; then for calls of its own process."""
    gate = Gate()
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=0, name="fn")
    fn.configure(batch_size=2)
    with served(fn) as first, served(fn) as second:
        for server in (first, second):
            client = server.connect().fn
            assert client([1, 2, 3, 4]) == [1, 2, 3, 4]
            assert gate.batches == [[1, 2], [3, 4]]
            gate.batches.clear()
        with pytest.raises(ValueError, match="batch_size"):
            fn.configure(batch_size=0)
        fn.configure(batch_size=3)
        for call in (first.connect().fn, second.connect().fn, fn):
            assert call([1, 2, 3, 4]) == [1, 2, 3, 4]
            assert gate.batches == [[1, 2, 3], [4]]
            gate.batches.clear()
    fn.configure(batch_size=4)
    assert fn([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert gate.batches == [[1, 2, 3, 4]]


@pytest.mark.skipif(not HAS_UNIX, reason="needs unix sockets")
@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
@pytest.mark.parametrize("how", ["close", "shutdown", "aclose", "dropped"])
def test_the_thread_that_watches_deadlines_ends_with_the_function(how: str) -> None:
    """Though the deadline of a call that was answered is far away."""
    with folder() as found, serving(f"unix:{found}/s", functions={"known": double}):
        client = batched.connect(f"unix:{found}/s")
        fn = client.known.options(deadline_ms=600_000)
        assert fn.submit(2).result(PATIENCE_S) == 4
        if how == "close":
            client.close()
        elif how == "shutdown":
            fn.shutdown()
        elif how == "aclose":
            asyncio.run(fn.aclose())
        del client, fn
        gc.collect()
        until(lambda: all(each.name != "batched deadlines: known" for each in threading.enumerate()))


def test_figures_and_findings_are_the_servers(server: Served) -> None:
    """From a thread, and from a loop, which they block."""
    fn, other = server.connect().double, server.connect().double
    before = double.stats.total_processed
    assert [fn(each) for each in range(5)] == [0, 2, 4, 6, 8]

    async def look() -> Any:
        return fn.stats.total_processed, fn.shapes(), fn.explain(), fn.expected_wait_ms(2)

    for processed, shapes, told, wait_ms in (asyncio.run(look()), asyncio.run(look())):
        assert (processed - before, shapes) == (5, [1, 2, 4])
        assert "the way there and back takes" in told
        assert wait_ms is None or wait_ms >= 0
    assert other.stats.total_processed - before == 5
    assert "the way there and back takes" not in other.explain()  # it has made no call
    with pytest.raises(ValueError, match="items"):
        fn.expected_wait_ms(0)


# -- the end ---------------------------------------------------------------------------------------------


@pytest.fixture
def gate() -> Gate:
    """A batch function that holds its batches."""
    return Gate(shut=True)


@pytest.fixture
def held(gate: Gate) -> Iterator[Served]:
    """Serve `f`, which holds its batches of one."""
    with served(batched.dynamically(gate, name="f", batch_size=1, timeout_ms=0)) as found:
        yield found
        gate.open()


def test_shutdown_waits_for_the_calls_of_this_function_only(held: Served, gate: Gate) -> None:
    """The server, and other clients, go on."""
    fn, other = held.connect().f, held.connect(wait_s=2).f
    futures = [fn.submit(each) for each in range(3)]
    gate.wait_for_batch()
    ends = threading.Thread(target=fn.shutdown, daemon=True)
    ends.start()
    until(lambda: fn._driver.closed)
    for late in (
        lambda: fn(1),
        lambda: fn.submit(1),
        lambda: list(fn.map([1])),
        lambda: fn.options(priority="bulk")(1),
    ):
        with pytest.raises(batched.ClosedError, match="was shut down in this process"):
            late()
    assert ends.is_alive()
    gate.open()
    ends.join(PATIENCE_S)
    assert [each.result(0) for each in futures] == [0, 1, 2]
    assert other(5) == 5
    fn.shutdown()
    asyncio.run(fn.aclose())


def test_shutdown_may_cancel_what_waits(held: Served, gate: Gate) -> None:
    """Futures, blocked threads, tasks: each is told at once, and what has not started never runs."""
    client = held.connect()
    fn = client.f
    running = held.connect(wait_s=3).f.submit("running")
    gate.wait_for_batch()
    raised: list[BaseException] = []

    def block() -> None:
        try:
            fn("blocked")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=block, daemon=True)
    thread.start()
    future = fn.submit("future")

    async def ask() -> None:
        task = asyncio.ensure_future(fn.acall("task"))
        await asyncio.sleep(0)
        fn.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE_S)

    until(lambda: fn.stats.total_accepted == 3)
    asyncio.run(ask())
    thread.join(PATIENCE_S)
    assert future.cancelled()
    assert [type(each).__name__ for each in raised] == ["CancelledError"]
    until(lambda: fn.stats.total_cancelled >= 2)  # first: else they may run before the server knows
    gate.open()
    assert running.result(PATIENCE_S) == "running"
    until(lambda: not fn.stats.running_items)
    assert gate.batches == [["running"]]


def test_with_ends_it(server: Served) -> None:
    """As a function of this process."""
    with server.connect().double as fn:
        assert fn(1) == 2
    with pytest.raises(batched.ClosedError):
        fn(1)


# -- options ---------------------------------------------------------------------------------------------


def test_a_default_deadline_of_the_server_holds_unless_a_client_says_none(gate: Gate) -> None:
    """None is no deadline; a number is another one; each element of a map has it."""
    fn = batched.dynamically(gate, name="f", batch_size=1, timeout_ms=0, default_deadline_ms=30)
    with served(fn) as server:
        f = server.connect().f
        first = f.options(deadline_ms=None).submit(0)
        gate.wait_for_batch()
        forever = f.options(deadline_ms=None).submit(1)
        with pytest.raises(TimeoutError, match="deadline_ms=30"):
            f(2)
        with pytest.raises(TimeoutError, match="deadline_ms=40"):
            f.options(deadline_ms=40)(3)
        with pytest.raises(TimeoutError, match="deadline_ms=30"):
            asyncio.run(f.acall(4))
        with pytest.raises(TimeoutError, match="deadline_ms=30"):
            next(f.map([5, 6]))
        with pytest.raises(TimeoutError, match="deadline_ms=30"):
            f.submit(7).result(PATIENCE_S)
        gate.open()
        assert (first.result(PATIENCE_S), forever.result(PATIENCE_S)) == (0, 1)
        assert gate.batches == [[0], [1]]
        gc.collect()  # of the loop that has ended, with its connection, for which the server waits


def test_a_future_that_has_started_is_answered_late(held: Served, gate: Gate) -> None:
    """As in one process: its caller bounds the wait."""
    f = held.connect().f
    assert f.stats.queue_size == 0  # connected: that may take longer than the deadline
    future = f.options(deadline_ms=200).submit(1)
    gate.wait_for_batch()
    threading.Event().wait(0.3)
    assert not future.done()
    gate.open()
    assert future.result(PATIENCE_S) == 1


def test_priorities_cross(held: Served, gate: Gate) -> None:
    """Interactive calls go ahead."""
    f = held.connect().f
    futures = [f.submit("first")]
    gate.wait_for_batch()
    futures += [
        f.options(priority="bulk").submit("bulk"),
        f.options(priority="interactive").submit("interactive"),
    ]
    until(lambda: f.stats.queue_size == 2)
    gate.open()
    for each in futures:
        each.result(PATIENCE_S)
    assert gate.batches == [["first"], ["interactive"], ["bulk"]]


def test_a_call_that_blocks_a_loop_warns(server: Served) -> None:
    """Once, as in one process."""
    fn = server.connect().double

    async def block() -> None:
        fn(1)

    with pytest.warns(batched.BlockingCallWarning, match="acall"):
        asyncio.run(block())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(block())


def test_a_consumer_that_falls_behind_loses_its_stream() -> None:
    """By `max_pieces` of the server; the pieces that waited come first."""

    @batched.dynamically(timeout_ms=0, max_pieces=3)
    def pieces(items: list[int]) -> Iterator[list[int]]:
        for at in range(50):
            yield [at for _ in items]

    with served(pieces) as server:
        fn = server.connect().pieces
        stream = fn.stream(1)
        until(lambda: not stream._call.missing)
        taken = []
        with pytest.raises(batched.SlowConsumerError, match="max_pieces=3"):
            taken.extend(stream)
        assert taken == [0, 1, 2]


# -- tenants ---------------------------------------------------------------------------------------------


def order_of(gate: Gate, calls: list[tuple[Any, Any]]) -> list[Any]:
    """Return the order in which calls of functions run, all of which wait while another one runs."""
    held = calls[0][0].submit(("held", next(NUMBERS)))
    gate.wait_for_batch()
    futures = [fn.submit(item) for fn, item in calls]
    until(lambda: calls[0][0].stats.queue_size == len(calls))
    gate.open()
    for each in [held, *futures]:
        each.result(PATIENCE_S)
    return [batch[0] for batch in gate.batches[1:]]


@pytest.mark.parametrize(
    "options",
    [{}, {"cache": {}}, {"fair_by": TENANT.get}, {"cache": {}, "group_by": len}],
    ids=["plain", "cache", "fair_by", "cache and group_by"],
)
def test_clients_take_turns(gate: Gate, options: dict[str, Any]) -> None:
    """A client with one call does not wait for all those of another one."""
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, name="f", **options)
    with served(fn) as server:
        many, one = server.connect().f, server.connect(wait_s=2).f
        found = order_of(gate, [*((many, ("many", at)) for at in range(10)), (one, ("one", 0))])
        assert found.index(("one", 0)) <= 2


def test_a_fair_by_of_the_client_says_the_tenant(held: Served, gate: Gate) -> None:
    """It is asked in the context of the caller; what has no plain value goes as its `repr`."""
    fn = held.connect(fair_by=TENANT.get).f
    found: list[Any] = []
    first = fn.submit("held")
    gate.wait_for_batch()
    futures = [first]
    for tenant, calls in (("a", 8), (None, 1), (("b", 1), 1)):
        TENANT.set(tenant)
        futures += [fn.submit((tenant, at)) for at in range(calls)]
    until(lambda: fn.stats.queue_size == 10)
    gate.open()
    for each in futures:
        each.result(PATIENCE_S)
    found = [batch[0][0] for batch in gate.batches[1:]]
    assert {*found[:4]} == {"a", None, ("b", 1)}
    TENANT.set([])
    with pytest.raises(batched.BatchError, match="f: fair_by failed: TypeError: unhashable type"):
        fn(1)
    TENANT.set("none")


def test_a_fair_by_of_the_client_that_fails_is_named(held: Served, gate: Gate) -> None:
    """As in one process, in whatever way the call is made; the next call is served."""
    gate.open()
    unset: ContextVar[str] = ContextVar("unset")
    fn = held.connect(fair_by=unset.get).f
    ways: list[Callable[[], object]] = [
        lambda: fn(1),
        lambda: fn.submit(1).result(PATIENCE_S),
        lambda: list(fn.map([1])),
        lambda: asyncio.run(fn.acall(1)),
    ]
    for way in ways:
        with pytest.raises(batched.BatchError, match="f: fair_by failed: LookupError: "):
            way()
    unset.set("a")
    assert fn(1) == 1


@pytest.mark.parametrize("fair_by", [3, len, TENANT], ids=["number", "of an item", "variable"])
def test_what_cannot_say_the_tenant_of_a_caller_is_refused(fair_by: Any) -> None:
    """By `connect`, not by the first call."""
    with pytest.raises(TypeError, match="fair_by must be a function without parameters, .* got "):
        batched.connect("unix:/tmp/x.sock", fair_by=fair_by)


def test_a_coroutine_function_cannot_say_the_tenant() -> None:
    """Nothing awaits it."""

    async def tenant() -> str:
        return "a"

    with pytest.raises(TypeError, match="fair_by must be a plain function, not `async def`, got "):
        batched.connect("unix:/tmp/x.sock", fair_by=tenant)


@pytest.mark.parametrize("spawn", [3, [3], object()])
def test_what_names_no_function_to_start_is_refused(spawn: Any) -> None:
    """With the value, and what it should be."""
    with pytest.raises(TypeError, match=r"spawn= needs 'module:function', got "):
        batched.connect(spawn=spawn)


@pytest.mark.parametrize("options", [{}, {"cache": {}}], ids=["plain", "cache"])
def test_a_fair_by_that_takes_an_item_is_asked_in_the_server(gate: Gate, options: dict[str, Any]) -> None:
    """It knows more than which client calls; a `fair_by` of the client knows still more."""
    fn = batched.dynamically(
        gate, name="f", batch_size=1, timeout_ms=0, fair_by=lambda item: item[0], cache_key=None, **options
    )
    with served(fn) as server:
        calls = [*((server.connect().f, ("a", at)) for at in range(8)), (server.connect().f, ("b", 0))]
        first = calls[0][0]
        assert order_of(gate, [(first, item) for _, item in calls]).index(("b", 0)) <= 2
        gate.batches.clear()
        gate.close()
        told = server.connect(fair_by=lambda: "one").f
        assert (
            order_of(gate, [(told, ("c", at)) for at in range(8)] + [(told, ("d", 0))]).index(("d", 0)) == 8
        )


def test_a_function_is_made_by_connect_only() -> None:
    """Its class is there to be asked for."""
    assert issubclass(RemoteFunction, batched.BatchedFunction)


@pytest.mark.parametrize("wait_s", [-1, math.inf, math.nan, 604_801, 10**400])
def test_a_wait_that_no_system_takes_is_refused(wait_s: float) -> None:
    """By `connect`, not by the first call, and with what it can be."""
    with pytest.raises(ValueError, match=r"wait_s must be .* from 0 to 604800 \(a week\), got "):
        batched.connect("tcp:127.0.0.1:9", token="t", wait_s=wait_s)


@pytest.mark.parametrize("wait_s", ["30", True])
def test_a_wait_that_is_no_number_is_refused(wait_s: Any) -> None:
    """As with the text of an environment variable."""
    with pytest.raises(TypeError, match=f"wait_s must be a number of seconds, got {wait_s!r}"):
        batched.connect("tcp:127.0.0.1:9", token="t", wait_s=wait_s)


def test_a_client_ends_while_others_look_for_its_functions() -> None:
    """Another thread, or a finalizer, may find one in the middle of it."""
    client = batched.connect("tcp:127.0.0.1:9", token="t")
    found = [client[f"f{number}"] for number in range(3)]

    def find_another(frame: Any, event: str, _: object) -> Any:
        if event == "line" and frame.f_globals["__name__"] == "weakref" and len(found) < 50:
            found.append(client[f"f{len(found)}"])
        return find_another

    before = sys.gettrace()
    sys.settrace(find_another)
    try:
        client.close()
    finally:
        sys.settrace(before)
    assert len(found) > 3
