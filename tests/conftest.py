"""Fixtures of all tests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import unittest
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from batched._core.task_awaitable import TaskAwaitable
from tests.kit.asks_for import ASKS_FOR
from tests.kit.effort import FULL, QUICK
from tests.kit.flavours import FLAVOURS, STREAMING, Flavour
from tests.kit.gate import PATIENCE_S
from tests.kit.left_out import KINDS, leave_out
from tests.kit.shared_workers import OWN_WORKERS, share_workers
from tests.kit.through_socket import ONE_PROCESS, through_socket

# A busy machine, or a tracer, is no failure. `--hypothesis-profile=soak` has the full numbers.
for name, examples in (("quick", QUICK), ("soak", FULL)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that forces the public way, as on a Python without what asyncio does not promise."""
    parser.addoption("--public-asyncio", action="store_true", help="use no private part of asyncio")
    parser.addoption(
        "--without",
        action="append",
        default=[],
        choices=[*KINDS, OWN_WORKERS, ONE_PROCESS],
        help="build batchers without this feature",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Turn the switch before any test."""
    keep_bytecode()
    if config.getoption("--public-asyncio"):
        TaskAwaitable.wait = TaskAwaitable.wait_by_future  # type: ignore[method-assign]
    left_out = config.getoption("--without")
    leave_out([name for name in left_out if name in KINDS])
    if OWN_WORKERS in left_out:
        share_workers()


def keep_bytecode() -> None:
    """Write bytecode, here and in processes that tests start, also where the environment forbids it.

    Else each worker compiles all tests anew, and each of some two hundred processes compiles the package.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


STATE_MACHINE = "Hypothesis has its source parsed, which threads cannot at once"
SHARED = {"caplog": "all threads write to one log", "registry": "a page has the batchers of all threads"}
"""Fixtures that a test cannot use in several threads at once, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of what is not there, torch or a feature; mark what one thread runs at a time."""
    from tests.kit.optional import is_missing  # has torch: the process that only hands out tests needs none

    asking = {test: name for name in config.getoption("--without") for test in ASKS_FOR[name]}
    for item in items:
        asked = asking.keys() & {item.path.name, getattr(item, "originalname", item.name)}
        if asked and item.path.parent.name == "contract":
            item.add_marker(pytest.mark.skip(reason=f"asks for {asking[asked.pop()]}"))
        if issubclass(getattr(item, "cls", None) or object, unittest.TestCase):
            item.add_marker(pytest.mark.thread_unsafe(reason=STATE_MACHINE))
        for name in SHARED.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.thread_unsafe(reason=SHARED[name]))
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if is_missing(parameters):
            item.add_marker(pytest.mark.skip(reason="needs torch"))


MANY_MODULES, MANY_TESTS = 100, 200


class Frozen:
    """How much has been imported, and tested, since the collector was kept from what there was."""

    modules = 0
    tests = 0

    @classmethod
    def renew(cls) -> None:
        """Keep the collector from what lives to the end: going through torch each time takes a while."""
        cls.modules, cls.tests = len(sys.modules), 0
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Keep the collector from what the tests have imported."""
    Frozen.renew()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Keep the collector from what is imported, if that is much, and from what many tests leave."""
    Frozen.tests += 1
    if len(sys.modules) >= Frozen.modules + MANY_MODULES or Frozen.tests >= MANY_TESTS:
        Frozen.renew()


def _kind(request: pytest.FixtureRequest) -> type[Flavour]:
    kind: type[Flavour] = request.param
    return through_socket(kind) if ONE_PROCESS in request.config.getoption("--without") else kind


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Each way to call a batched function."""
    flavour = _kind(request)()
    with flavour.running():
        yield flavour


@pytest.fixture(params=STREAMING, ids=lambda flavour: flavour.name)
def streaming(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Each way to read a stream."""
    flavour = _kind(request)()
    with flavour.running():
        yield flavour


@pytest.fixture(params=["asyncio", "uvloop", "debug"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """`asyncio.run` with a time limit, on loops of each kind."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run_until_done(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(debug=request.param == "debug", loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, PATIENCE_S))

    return run_until_done


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log, without what asyncio says of earlier tests' tasks when they are collected."""
    gc.collect()
    caplog.clear()
    return caplog


@pytest.fixture
def untraced() -> Iterator[None]:
    """Trace neither the test nor the threads that it starts.

    An interrupted tracer keeps its lock, and the next call waits for it for ever. And a traced worker enters
    no function while a signal waits for the main thread (CPython 3.11), which waits for the worker.
    """
    of_this, of_new = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    yield
    threading.settrace(of_new)  # type: ignore[arg-type]
    sys.settrace(of_this)


@pytest.fixture
def wakes_at_once() -> bool:
    """Whether a task goes on in the turn in which its call is answered; with public asyncio, a turn later."""
    return TaskAwaitable.wait is not TaskAwaitable.wait_by_future


@pytest.fixture
def restless() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
