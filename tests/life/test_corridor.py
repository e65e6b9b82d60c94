"""What a call passes that uses no feature: so much, and no more.

To raise a figure takes a commit that says why. They are the least of many calls, at rest.
"""

from __future__ import annotations

import asyncio
import gc
import json
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import batched
from batched import aio
from tests.kit.gate import IS_FREE_THREADED
from tests.kit.script import run_script

FRAMES = {
    # kind of call: frames of the package for its caller, and for the worker or the loop
    "fn(x)": (9, 24),
    "fn(x), a deadline": (13, 50),
    "await fn.acall(x)": (15, 27),
    "await fn(x), aio": (43, 0),
    # Of each batch of a long list: a fiftieth of them come once a list.
    "fn(items), a batch": (0.12, 17.4),
    "await fn(items), aio, a batch": (19.6, 0),
}
FILES = {"fn(x)": 13, "await fn(x), aio": 14}
"""The modules of the package in which these frames are."""

LINES = {"fn(x)": 4_099, "await fn(x), aio": 4_110}
"""The lines of these modules, all that they have."""

MOST_ATTRIBUTES = 30
"""Of an object with more than that in its `__dict__`, Python looks up each method anew, at each call."""

COUNT = """
import itertools, json
from batched import aio
from batched._drivers import alarms

def with_clock():
    modules = [module for name, module in sys.modules.items() if name.startswith("batched.")]
    return [module for module in modules if "monotonic" in vars(module)]

# Each look at the clock takes 5 us: a batch that a busy machine held up would be a lesson, with more frames.
looks = itertools.count()
replaced = with_clock()
for module in replaced:
    if module.__name__ != "batched._clock":
        module.monotonic = lambda: next(looks) * 5e-6

seen = []

def note(frame, event, _):
    if event == "call" and frame.f_globals.get("__name__", "").startswith("batched."):
        seen.append((threading.get_ident(), frame.f_globals["__name__"]))

def same(items):
    return items

async def same_on_loop(items):
    return items

def least(call, calls=400):
    found = []
    for _ in range(calls):
        seen.clear()
        call()
        time.sleep(0.0005)
        mine = [module for ident, module in list(seen) if ident == threading.get_ident()]
        theirs = [module for ident, module in list(seen) if ident != threading.get_ident()]
        found.append((len(mine), len(theirs), sorted({*mine, *theirs})))
    return min(found, key=lambda counts: counts[0] + counts[1] if counts[1] or ON_LOOP else 10_000)

ON_LOOP = False
threading.setprofile(note)
plain, late = batched.dynamically(same), batched.dynamically(same, default_deadline_ms=2000)
for _ in range(600):
    plain(1), late(1)
sys.setprofile(note)
counts = {"fn(x)": least(lambda: plain(1)), "fn(x), a deadline": least(lambda: late(1))}
loop = asyncio.new_event_loop()

async def ask(fn):
    return await fn(1)

for _ in range(600):
    loop.run_until_complete(ask(plain.acall))
counts["await fn.acall(x)"] = least(lambda: loop.run_until_complete(ask(plain.acall)))
ON_LOOP = True
on_loop = aio.dynamically(same_on_loop)
for _ in range(600):
    loop.run_until_complete(ask(on_loop))
counts["await fn(x), aio"] = least(lambda: loop.run_until_complete(ask(on_loop)))
BATCHES = 80
items = list(range(32 * BATCHES))
of_list = batched.dynamically(same, batch_size=32)
of_list_on_loop = aio.dynamically(same_on_loop, batch_size=32)

def least_per_batch(call):
    for _ in range(20):
        call()
    mine, theirs, files = least(call, 30)
    return mine / BATCHES, theirs / BATCHES, files

async def ask_for_list():
    return await of_list_on_loop(items)

counts["await fn(items), aio, a batch"] = least_per_batch(lambda: loop.run_until_complete(ask_for_list()))
ON_LOOP = False
counts["fn(items), a batch"] = least_per_batch(lambda: of_list(items))
sys.setprofile(None)
threading.setprofile(None)
loop.close()
assert with_clock() == replaced
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[float, float, list[str]]]:
    """For each kind of call, frames of its caller and of the worker, and their modules."""
    found: dict[str, tuple[float, float, list[str]]] = json.loads(
        run_script(textwrap.dedent(COUNT), counts_memory=True)
    )
    return found


@pytest.mark.parametrize("kind", FRAMES)
def test_a_call_passes_no_more_than_it_did(
    kind: str, counts: dict[str, tuple[float, float, list[str]]]
) -> None:
    """At rest, once there is nothing new to learn."""
    if kind.endswith("a batch") and IS_FREE_THREADED:
        pytest.skip("how often a worker waits for the caller of a list depends on which of them is faster")
    caller, worker, _ = counts[kind]
    assert caller <= FRAMES[kind][0]
    assert worker <= FRAMES[kind][1]


@pytest.mark.parametrize("kind", FILES)
def test_it_meets_no_more_files(kind: str, counts: dict[str, tuple[float, float, list[str]]]) -> None:
    """Each is one more that has to be read."""
    assert len(counts[kind][2]) <= FILES[kind]


@pytest.mark.parametrize("kind", LINES)
def test_these_files_have_no_more_lines(kind: str, counts: dict[str, tuple[float, float, list[str]]]) -> None:
    """What the walk of a call does not need is in a file of its own."""
    files = [Path(spec.origin or "") for name in counts[kind][2] if (spec := find_spec(name)) is not None]
    assert sum(len(file.read_text().splitlines()) for file in files) <= LINES[kind]


def test_python_remembers_where_methods_are() -> None:
    """Of all objects that calls pass, as none has too many attributes."""

    def same(items: list[int]) -> list[int]:
        return items

    async def same_on_loop(items: list[int]) -> list[int]:
        return items

    async def ask() -> int:
        return await on_loop(1)

    plain, on_loop = batched.dynamically(same), aio.dynamically(same_on_loop)
    assert plain(1) == asyncio.run(ask()) == 1
    found = {
        type(each).__qualname__: len(vars(each))
        for each in gc.get_objects()
        if str(type(each).__module__).startswith("batched.") and hasattr(each, "__dict__")
    }
    assert {"Batcher", "Counters", "ThreadDriver"} <= found.keys()
    assert {name: number for name, number in found.items() if number > MOST_ATTRIBUTES} == {}
