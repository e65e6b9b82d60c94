"""Functions with arrays on a GPU: rows, memory, compiled models, and errors of the device.

Where there is no GPU, what does not need one runs on the CPU: `python -m pytest -m gpu`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batched
from batched import inference
from batched._policy.out_of_memory import is_out_of_memory
from tests.kit.gate import PATIENCE_S
from tests.kit.serving import served

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # other libraries warn of much

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")

Threads = Callable[[Callable[[Any], Any], list[Any]], list[Any]]


def by_threads(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Return the answers of calls from 32 threads."""
    with ThreadPoolExecutor(32) as threads:
        return list(threads.map(fn, items, timeout=PATIENCE_S))


def by_tasks(fn: Any, items: list[Any]) -> list[Any]:
    """Return the answers of calls from a task each."""

    async def main() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*map(fn.acall, items)), PATIENCE_S)

    return asyncio.run(main())


def by_list(fn: Any, items: list[Any]) -> list[Any]:
    """Return the answers of one call with all items."""
    found: list[Any] = fn(items)
    return found


ways = pytest.mark.parametrize("ask", [by_threads, by_tasks, by_list])


def owns(row: Any) -> bool:
    """Whether a tensor has no memory but its own."""
    return bool(row.untyped_storage().nbytes() == row.nbytes)


# -- rows ----------------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("returned", ["array", "list", "tuples", "dicts"])
def test_rows_of_a_batch_on_the_device_belong_to_their_callers(ask: Threads, returned: str) -> None:
    kinds: dict[str, Callable[[Any], Any]] = {
        "array": lambda out: out,
        "list": list,
        "tuples": lambda out: [(row, "text") for row in out],
        "dicts": lambda out: [{"row": row} for row in out],
    }

    @batched.dynamically(batch_size=16)
    def doubled(rows: list[Any]) -> Any:
        return kinds[returned](torch.stack(rows) * 2)

    rows = list(torch.randn(200, 8, device=DEVICE))
    for row, found in zip(rows, ask(doubled, rows), strict=True):
        mine = {"tuples": lambda it: it[0], "dicts": lambda it: it["row"]}.get(returned, lambda it: it)(found)
        assert mine.device.type == DEVICE
        assert owns(mine)
        assert torch.equal(mine, row * 2)


@ways
def test_a_buffer_that_is_used_again_does_not_change_what_callers_have(ask: Threads) -> None:
    buffer = torch.empty(16, 8, device=DEVICE)

    @batched.dynamically(batch_size=16)
    @torch.inference_mode()
    def doubled(rows: list[Any]) -> Any:
        out = buffer[: len(rows)]
        torch.mul(torch.stack(rows), 2, out=out)
        return out

    rows = list(torch.randn(500, 8, device=DEVICE))
    found = ask(doubled, rows)
    assert all(torch.equal(mine, row * 2) for mine, row in zip(found, rows, strict=True))


@pytest.mark.parametrize("where", ["device", "cpu", "both"])
def test_ragged_rows_are_padded_where_they_are(where: str) -> None:
    seen: list[Any] = []

    @inference.dynamically(batch_size=16, unpad_outputs={"ids": "ids"})
    def total(features: dict[str, Any]) -> Any:
        seen.append((features["ids"].device.type, features["mask"].device.type))
        return {"sums": (features["ids"] * features["mask"]).sum(1), "ids": features["ids"] * 2}

    def features(number: int) -> dict[str, Any]:
        length = 1 + number % 13
        place = {"device": DEVICE, "cpu": "cpu", "both": (DEVICE, "cpu")[number % 2]}[where]
        ids = torch.arange(number, number + length, device=place)[None]
        return {"ids": ids, "mask": torch.ones_like(ids)}

    asked = [features(number) for number in range(300)]
    for given, found in zip(asked, by_threads(lambda each: total(**each), asked), strict=True):
        assert found["sums"].device == given["ids"].device
        assert torch.equal(found["sums"], given["ids"].sum(1))
        assert torch.equal(found["ids"], given["ids"] * 2)
        assert owns(found["ids"])
    assert all(ids == mask for ids, mask in seen)  # no batch has rows of two devices


def test_a_worker_with_a_stream_of_its_own_answers_right() -> None:
    if not HAS_GPU:
        pytest.skip("the CPU has no streams")
    pool = batched.Workers(2, initializer=lambda _: torch.cuda.Stream())
    weights = torch.randn(256, 256, device=DEVICE)

    @batched.dynamically(workers=pool, batch_size=32)
    def project(rows: list[Any]) -> Any:
        with torch.inference_mode(), torch.cuda.stream(batched.current_worker().state):
            batch = torch.stack(rows).pin_memory().to(DEVICE, non_blocking=True)
            return (batch @ weights).cpu()

    rows = list(torch.randn(2000, 256))
    found = torch.stack(by_threads(project, rows))
    assert torch.allclose(found, torch.stack(rows) @ weights.cpu(), atol=1e-2, rtol=1e-2)
    pool.shutdown()


# -- memory --------------------------------------------------------------------------------------------


@pytest.fixture
def gib() -> Iterator[float]:
    """How many GiB of the device are free."""
    if not HAS_GPU:
        pytest.skip("needs a GPU")
    gc.collect()
    torch.cuda.empty_cache()
    yield torch.cuda.mem_get_info()[0] / 2**30
    gc.collect()
    torch.cuda.empty_cache()


def taken(share: float, gib: float) -> Any:
    """Return a tensor that takes a share of the memory that was free."""
    return torch.empty(int(share * gib * 2**30), dtype=torch.uint8, device=DEVICE)


@ways
@pytest.mark.parametrize("first", [0, 0.3])
def test_a_batch_that_does_not_fit_is_divided_until_it_does(ask: Threads, first: float, gib: float) -> None:
    before, sizes = torch.cuda.memory_allocated(), list[int]()

    @batched.dynamically(batch_size=16)
    def answer(items: list[int]) -> list[int]:
        held = taken(first, gib)  # in a frame of the traceback, if what follows fails
        more = taken(0.15 * len(items), gib)
        sizes.append(len(items))
        del held, more
        return [item * 2 for item in items]

    assert ask(answer, [*range(64)]) == [item * 2 for item in range(64)]
    assert max(sizes) <= (6 if not first else 4)
    assert answer.stats.total_failed == 0
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_copies_of_rows_that_do_not_fit_divide_the_batch(gib: float) -> None:
    before = torch.cuda.memory_allocated()

    @batched.dynamically(batch_size=8)
    def answer(items: list[int]) -> Any:
        whole = taken(0.7 if len(items) > 1 else 0.01, gib)
        return whole[None].expand(len(items), -1)

    found = answer([*range(8)])
    assert len(found) == 8
    assert answer.stats.fits_memory == 1
    del found
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@ways
def test_an_idle_batcher_keeps_no_memory_of_the_device(ask: Threads, gib: float) -> None:
    before = torch.cuda.memory_allocated()

    @batched.dynamically(batch_size=16)
    def doubled(rows: list[Any]) -> Any:
        return torch.stack(rows) * 2

    @inference.dynamically(batch_size=16)
    def tripled(features: dict[str, Any]) -> Any:
        return features["x"] * 3

    rows = list(torch.randn(100, 1000, device=DEVICE))
    found = [ask(doubled, rows), by_threads(lambda row: tripled(x=row[None]), rows)]
    del rows, found
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert doubled.stats.total_processed == 100  # both live on
    assert tripled.stats.total_processed == 100


def _cupy(gib: float) -> None:
    cupy = importlib.import_module("cupy")
    cupy.empty(int(gib * 2**30), dtype="u1")


def _cuda_runtime(gib: float) -> None:
    cupy = importlib.import_module("cupy")
    cupy.cuda.runtime.malloc(int(gib * 2**30))


def _jax(gib: float) -> None:
    jax = importlib.import_module("jax")
    jax.numpy.zeros(int(gib * 2**30), dtype="uint8").block_until_ready()


def _jax_compiled(gib: float) -> None:
    jax = importlib.import_module("jax")
    rows = int((gib * 2**30 / 4) ** 0.5)
    outer = jax.jit(lambda x: (x[:, None] * x[None, :] + 1).sum(0) + (x[None, :] / (x[:, None] + 2)).max(1))
    jax.jit(lambda x: jax.numpy.linalg.inv(x[:, None] * x[None, :]))(jax.numpy.ones(rows)).block_until_ready()
    outer(jax.numpy.ones(rows)).block_until_ready()


def _numba(gib: float) -> None:
    cuda = importlib.import_module("numba.cuda")
    cuda.device_array(int(gib * 2**30), dtype="u1")


def _torch(gib: float) -> None:
    taken(1.1, gib)


def _torch_host(_: float) -> None:
    torch.empty(2**62, dtype=torch.uint8)


def _torch_pinned(gib: float) -> None:
    torch.empty(int(gib * 2**37), dtype=torch.uint8, pin_memory=True)


def _torch_graph(gib: float) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        taken(1.1, gib)


FAILING = [
    *(_cupy, _cuda_runtime, _jax, _jax_compiled, _numba),
    *(_torch, _torch_host, _torch_pinned, _torch_graph),
]


@pytest.mark.parametrize("fail", FAILING)
def test_what_libraries_say_when_the_memory_of_the_device_is_short(
    fail: Callable[[float], None], gib: float
) -> None:
    error: Exception | None = None
    try:
        fail(1.2 * gib)
    except ImportError as missing:
        pytest.skip(str(missing))
    except Exception as raised:
        error = raised
    assert error is not None
    assert is_out_of_memory(error), error


# -- compiled models -----------------------------------------------------------------------------------


def test_a_graph_that_is_replayed_does_not_change_what_callers_have() -> None:
    if not HAS_GPU:
        pytest.skip("the CPU has no graphs")
    weights = torch.randn(64, 64, device=DEVICE)
    graphs: dict[int, tuple[Any, Any, Any]] = {}

    def capture(size: int) -> tuple[Any, Any, Any]:
        given = torch.zeros(size, 64, device=DEVICE)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            given @ weights
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.relu(given @ weights)
        return graph, given, out

    @batched.dynamically(batch_sizes=(1, 4, 16))
    @torch.inference_mode()
    def project(rows: list[Any]) -> Any:
        if len(rows) not in graphs:
            graphs[len(rows)] = capture(len(rows))
        graph, given, out = graphs[len(rows)]
        torch.stack(rows, out=given)
        graph.replay()
        return out

    project.warm_up(torch.zeros(64, device=DEVICE))
    assert sorted(graphs) == [1, 4, 16]
    rows = list(torch.randn(1000, 64, device=DEVICE))
    found = by_threads(project, rows) + by_tasks(project, rows)
    assert len(graphs) == 3
    with torch.inference_mode():
        right = torch.relu(torch.stack(rows) @ weights)
    assert torch.allclose(torch.stack(found), torch.cat([right, right]), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_meets_no_new_shape_after_the_warm_up(mode: str) -> None:
    from torch._dynamo.utils import counters

    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    layers = layers.to(DEVICE).eval()
    model = torch.compile(layers, dynamic=False, mode=mode)

    @batched.dynamically(batch_sizes=(1, 8, 32))
    @torch.inference_mode()
    def classify(rows: list[Any]) -> Any:
        return model(torch.stack(rows).to(DEVICE))

    rows = list(torch.randn(3000, 64))
    classify.warm_up(rows[0])
    compiled = counters["stats"]["unique_graphs"]
    found = torch.stack(by_threads(classify, rows))
    assert counters["stats"]["unique_graphs"] == compiled
    with torch.inference_mode():
        right = layers(torch.stack(rows).to(DEVICE))
    assert torch.allclose(found, right, atol=1e-2, rtol=1e-2)


# -- streams -------------------------------------------------------------------------------------------


def test_a_batch_that_is_refilled_on_the_device_writes_what_each_would_alone() -> None:
    torch.manual_seed(0)
    table = torch.randn(97, 97, device=DEVICE).argsort(1)
    end = 13

    @batched.dynamically(batch_size=8, continuous=True)
    def write(prompts: list[int]) -> Generator[list[Any], batched.Change[int], None]:
        last = torch.tensor(prompts, device=DEVICE)
        steps = torch.zeros_like(last)
        while True:
            last = table[last, steps % 97]
            steps = steps + 1
            ended = ((last == end) | (steps >= 40)).tolist()
            pieces = [
                batched.DONE if over else piece for over, piece in zip(ended, last.tolist(), strict=True)
            ]
            change = yield pieces
            if change:
                keep = torch.tensor(
                    [at for at in range(len(pieces)) if at not in change.left], device=DEVICE
                ).long()
                joined = torch.tensor(change.joined, device=DEVICE, dtype=torch.long)
                last = torch.cat([last[keep], joined])
                steps = torch.cat([steps[keep], torch.zeros_like(joined)])

    def alone(prompt: int) -> list[int]:
        text, last = [], prompt
        for step in range(40):
            last = int(table[last, step % 97])
            if last == end or step == 39:
                return text
            text.append(last)
        return text

    prompts = [number % 97 for number in range(200)]
    right = {prompt: alone(prompt) for prompt in set(prompts)}
    found = by_threads(lambda prompt: list(write.stream(prompt)), prompts)
    assert found == [right[prompt] for prompt in prompts]


# -- errors --------------------------------------------------------------------------------------------

_POISONED = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import batched, torch

table = torch.arange(10, device="cuda")

@batched.dynamically(batch_size=8)
def look_up(items):
    return table[torch.tensor(items, device="cuda")].cpu()

assert [int(each) for each in look_up([1, 2, 3])] == [1, 2, 3]
def ask(item):
    try:
        return int(look_up(item))
    except Exception as error:
        return type(error).__name__ + ": " + str(error).splitlines()[0]
with ThreadPoolExecutor(16) as threads:
    found = list(threads.map(ask, [*range(10), 99] * 3, timeout=60))
print({*map(str, found)})
print(look_up.explain())
print("after:", ask(1))
"""


@needs_gpu
def test_an_error_after_which_the_device_does_not_work_leaves_no_call_waiting() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _POISONED], capture_output=True, text=True, timeout=120, check=False
    )
    assert "device-side assert" in ran.stdout, ran.stderr
    assert "after:" in ran.stdout, ran.stderr  # no call waits, nor does the exit


# -- another process -----------------------------------------------------------------------------------


def test_tensors_of_the_device_arrive_on_the_cpu() -> None:
    """A web process need not have a GPU, and should not take memory of it."""
    seen: list[str] = []

    @batched.dynamically
    def doubled(rows: list[Any]) -> Any:
        seen.extend(row.device.type for row in rows)
        return torch.stack([row.to(DEVICE) for row in rows]) * 2

    with served(doubled) as server:
        remote = server.connect().doubled
        rows = [*torch.randn(50, 100_000 // 50, device=DEVICE)]
        for row, found in zip(rows, by_threads(remote, rows), strict=True):
            assert found.device.type == "cpu"
            assert torch.equal(found, row.cpu() * 2)
    assert {*seen} == {"cpu"}


def test_random_rows_of_many_shapes_are_never_mixed_up() -> None:
    @inference.dynamically(batch_size=32, unpad_outputs={"x": "x"})
    def double(features: dict[str, Any]) -> Any:
        return {name: each * 2 for name, each in features.items()}

    pick = random.Random(0)

    def features() -> dict[str, Any]:
        kind = pick.choice([torch.float32, torch.float16, torch.bfloat16, torch.int64])
        shape = (pick.randint(1, 3), pick.randint(1, 9), pick.choice([2, 4]))
        return {
            "x": torch.randint(0, 100, shape, device=DEVICE).to(kind),
            "y": torch.ones(shape[:1], device=DEVICE),
        }

    asked = [features() for _ in range(600)]
    for given, found in zip(asked, by_threads(lambda each: double(**each), asked), strict=True):
        assert found["x"].dtype == given["x"].dtype
        assert torch.equal(found["x"], given["x"] * 2)
