"""Copies and pickles have a batcher of their own."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batched import aio
from tests.kit.script import ROOT, run_script


@aio.dynamically(batch_size=7, timeout_ms=0)
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @aio.dynamically(batch_size=7, timeout_ms=0)
    async def run(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles_for_event_loops_have_their_own_queue(copied: Any) -> None:
    """Of functions and instances, after use."""
    model = Model(3)
    assert (asyncio.run(model.run(1)), asyncio.run(double(1))) == (3, 2)
    twin, function = copied(model), copied(double)
    assert (asyncio.run(twin.run([1, 2])), asyncio.run(function(2))) == ([3, 6], 4)
    assert model.run.stats.total_accepted == 1
    assert "batch_size=7" in repr(function)


MODULE = """
import batched

@batched.dynamically(timeout_ms=0)
def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]

class Model:
    def __init__(self, factor):
        self.factor = factor
        self.own = batched.dynamically(self._own, timeout_ms=0)

    @batched.dynamically(batch_size=7, timeout_ms=0)
    def run(self, items):
        return [self.factor * item for item in items]

    @batched.dynamically(timeout_ms=0)
    @classmethod
    def of_class(cls, items):
        return [cls.__name__ for _ in items]

    @batched.dynamically(batch_size=9, timeout_ms=0)
    @staticmethod
    def static(items):
        return [-item for item in items]

    def _own(self, items):
        return [self.factor + item for item in items]
"""


COPIES = """
def check(copied):
    if used:
        assert (double(1), model.run(1), model.own(1)) == (2, 3, 4)
    again, twin, bound, of_class, static = copied(
        (double, model, model.run, Model.of_class, Model.static)
    )
    assert (again(2), again([1, 2]), twin.run(2), twin.own(2), bound(2)) == (4, [2, 4], 6, 5, 6)
    assert of_class(1) == "Model"
    assert (static(1), twin.static([1, 2])) == (-1, [-1, -2])
    assert "batch_size=9" in repr(static)
    assert (again.__name__, again.__doc__) == ("double", double.__doc__)
    assert "batch_size=7" in repr(twin.run)
    assert twin is not model and twin.run.stats.total_processed >= 1
    accepted = model.run.stats.total_accepted
    twin.run(1)
    assert model.run.stats.total_accepted == accepted, "the copy shares the original's queue"
    if again is not double:
        assert again.stats.total_accepted == 3

for used in (False, True):
    for how in HOW:
        model = Model(3)
        inspect.getmembers(model.run)  # as a debugger does, and `unittest.mock.create_autospec`
        check(how)
    view = double.options(deadline_ms=50_000)
    for protocol in (4, 5):
        assert pickle.loads(DUMPS(view, protocol))(3) == 6
    for protocol in (0, 3):
        try:
            DUMPS(view, protocol)
        except pickle.PicklingError as error:
            assert str(error).startswith("double can be pickled with protocol 4 or later"), error
        else:
            raise AssertionError(protocol)
"""


@pytest.mark.parametrize("place", ["module", "main"])
def test_copies_and_pickles_work_and_have_their_own_queue(place: str, tmp_path: Path) -> None:
    """`copy`, `pickle` and `cloudpickle`, before and after use, in a module and in `__main__`."""
    (tmp_path / "its_module.py").write_text(MODULE)
    source = "from its_module import *" if place == "module" else MODULE
    how = """
import cloudpickle, copy, inspect, pickle
HOW = [
    lambda x: tuple(copy.copy(y) for y in x),
    copy.deepcopy,
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: pickle.loads(cloudpickle.dumps(x)),
]
DUMPS = pickle.dumps
"""
    script = tmp_path / "script.py"
    script.write_text(source + how + COPIES)
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_what_cloudpickle_took_from_main_works_in_another_process(tmp_path: Path) -> None:
    """Where neither the script nor its module can be imported."""
    script = tmp_path / "script.py"
    script.write_text(
        MODULE
        + """
import cloudpickle, sys
model = Model(3)
assert model.run(1) == 3
sys.stdout.buffer.write(cloudpickle.dumps((double, model, Model)))
"""
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dumped = subprocess.run(
        [sys.executable, str(script)], capture_output=True, timeout=60, check=True, env=environment
    )
    loaded = """
import pickle, sys
double, model, Model = pickle.load(sys.stdin.buffer)
assert (double(2), model.run(2), model.own(2), Model(5).run(1)) == (4, 6, 5, 5)
assert (Model.static(1), model.static(2)) == (-1, -2)
"""
    subprocess.run(
        [sys.executable, "-c", loaded], input=dumped.stdout, timeout=60, check=True, env=environment
    )


def test_a_spawned_process_gets_a_working_copy(tmp_path: Path) -> None:
    """As `multiprocessing` sends its target and arguments."""
    (tmp_path / "its_module.py").write_text(MODULE)
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing
from its_module import double, Model

def work(fn, model):
    assert (fn(2), model.run(2)) == (4, 6)

if __name__ == "__main__":
    model = Model(3)
    model.run(1)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(double, model))
    process.start()
    process.join(30)
    assert process.exitcode == 0
"""
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, str(script)], timeout=60, check=True, env=environment)


def test_everything_survives_pickle_and_copy() -> None:
    """Functions with callbacks, caches, streams; each copy has a batcher of its own."""
    run_script(
        """
        import cloudpickle
        served = batched.dynamically(
            double.__wrapped__, timeout_ms=0, cache={}, cache_key=abs, group_by=abs, max_queue_size=9,
            on_full="wait", max_concurrent_batches=2, isolate_errors=True, name="served",
        )
        class Model:
            @batched.dynamically(timeout_ms=0)
            def words(self, texts):
                rows = [text.split() for text in texts]
                for step in range(max(map(len, rows))):
                    yield [row[step] if step < len(row) else batched.DONE for row in rows]
            @batched.dynamically(timeout_ms=0)
            def add(self, xs, ys=None):
                return [x + y for x, y in zip(xs, ys)]
        model = Model()
        assert served(2) == 4
        for clone in (copy.copy(served), cloudpickle.loads(cloudpickle.dumps(served))):
            assert clone([1, 2]) == [2, 4]
            clone.shutdown()
            assert served(3) == 6
        by_value = cloudpickle.loads(cloudpickle.dumps(model))
        for other in (copy.deepcopy(model), by_value, pickle.loads(pickle.dumps(model))):
            assert list(other.words.stream("a b")) == ["a", "b"]
            assert other.add([1], [2]) == [3]
        done = pickle.loads(pickle.dumps(batched.DONE))
        assert done is batched.DONE and copy.deepcopy(done) is done and repr(done) == "batched.DONE"
        """
    )
