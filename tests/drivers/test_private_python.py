"""What the package uses of Python without its promise: each is there, and all goes on without it."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import batched
from batched import BlockingCallWarning, aio
from batched._core.task_awaitable import TaskAwaitable
from batched._drivers import private_python
from batched._locks import RLock
from tests.kit.functions import echo, plain_echo
from tests.kit.gate import PATIENCE_S, Gate, turns

PACKAGE = Path(batched.__file__).parent
PLACES = {"_drivers/private_python.py", "_core/task_awaitable.py", "_locks.py"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (asyncio, "_get_running_loop"),
        (asyncio.Task, "_log_destroy_pending"),
        (sys, "_current_frames"),
        (threading, "_register_atexit"),
        (RLock, "_is_owned"),
        (threading, "_active_limbo_lock"),
    ],
    ids=[
        "running loop",
        "log of pending tasks",
        "frames of threads",
        "end of threads",
        "owner of a lock",
        "lock of starts",
    ],
)
def test_a_private_part_of_python_is_still_there(owner: Any, name: str) -> None:
    """On a Python that fails this the package takes its public way: slower, or with more in the log."""
    assert hasattr(owner, name)


def test_tasks_take_a_call_for_a_future() -> None:
    """On a Python that fails this each task waits for a future of asyncio's own."""
    assert private_python.takes_calls()


def private_parts(file: Path) -> set[str]:
    """Return the private names that a module takes from Python, or sets on a task."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Attribute(ast.Name("asyncio" | "sys" | "threading" | "task" | "loop" | "lock"), name):
                found.add(name)
            case ast.ImportFrom(str(module), names) if not module.startswith("batched"):
                found |= {alias.name for alias in names}
            case ast.Constant(str(name)) if name.startswith("_asyncio"):
                found.add(name)
            case ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), *_]):
                found.add(name)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


@pytest.mark.thread_unsafe(reason="threads cannot parse source at once")
def test_private_parts_of_python_are_used_in_their_place_only() -> None:
    """So that there is one file to look at for each new Python."""
    files = {file.relative_to(PACKAGE).as_posix(): private_parts(file) for file in PACKAGE.rglob("*.py")}
    assert {file for file, names in files.items() if names} == PLACES


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks wait for futures of asyncio's own."""
    monkeypatch.setattr(TaskAwaitable, "wait", TaskAwaitable.wait_by_future)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["thread", "loop"])
def test_tasks_are_answered_and_cancelled_the_public_way(decorate: Any, run: Any) -> None:
    """A task that is cancelled ends with the reason that was given."""
    function = plain_echo if decorate is batched.dynamically else echo
    fn = decorate(function, timeout_ms=0)
    later = decorate(function, timeout_ms=600_000, adaptive=False)

    async def main() -> None:
        assert await asyncio.gather(*map(fn.acall, range(50))) == [*range(50)]
        waiting = asyncio.create_task(later.acall(1))
        await turns()
        waiting.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await waiting
        await later.aclose()
        assert later.stats.total_cancelled == 1
        await fn.aclose()

    run(main())


@pytest.mark.usefixtures("without")
def test_tasks_leave_a_running_batch_the_public_way() -> None:
    """At once, while the function runs; it answers later calls."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall(item)) for item in range(3)]
        await asyncio.to_thread(gate.wait_for_batch)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert all(task.cancelled() for task in tasks)
        gate.open()
        assert await asyncio.wait_for(fn.acall(4), PATIENCE_S) == 4

    asyncio.run(main())
    fn.shutdown()


def test_the_other_parts_have_public_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a blocking call is warned of all the same, and there are no stacks of workers."""
    spec: Any = private_python.__spec__
    public = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patched:
        patched.delattr(asyncio, "_get_running_loop")
        patched.delattr(sys, "_current_frames")
        patched.delattr(threading, "_active_limbo_lock")
        spec.loader.exec_module(public)
        assert public.frames_of_threads() == {}
        assert not public.holds_lock_of_starts()
        public.free_lock_of_starts()
    public.end_silently(object())
    monkeypatch.setattr("batched._drivers.blocking.running_loop_or_none", public.running_loop_or_none)
    monkeypatch.setattr("batched._api.flavours.running_loop_or_none", public.running_loop_or_none)
    fn = batched.dynamically(plain_echo, timeout_ms=0)
    assert fn(1) == 1

    async def blocking() -> Any:
        return fn(2)

    with pytest.warns(BlockingCallWarning):
        assert asyncio.run(blocking()) == 2
    fn.shutdown()
