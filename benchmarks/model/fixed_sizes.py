"""A compiled model in batches of fixed sizes, beside the same one in any sizes, and a plain one.

An encoder of two layers with random weights, one torch thread, and rows of 1 to 64 numbers. Recompilations
are those of 1,000 batches of random sizes, after `warm_up`; without fixed sizes there is nothing to warm up.
Throughput is that of 32 tasks, each of which asks for one row, and for another when it is answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from batched import inference
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import COUNT, SHARE, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns, Unavailable

_SIZES = (1, 2, 4, 8, 16, 32)
_LENGTHS = (16, 32, 48, 64)
_FIXED: dict[str, Any] = {"batch_sizes": _SIZES, "pad_to_lengths": _LENGTHS}
_CALLERS = 32
_SHAPES = 200  # more than are seen: of one model, torch compiles only 8 by default


def _model() -> Any:
    """Return the model, not compiled."""
    try:
        import torch  # noqa: PLC0415
        from torch import nn  # noqa: PLC0415
    except ImportError as missing:
        raise Unavailable(str(missing)) from missing
    torch.manual_seed(1)
    torch.set_num_threads(1)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(1000, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids: Any) -> Any:
            return self.layers(self.words(ids), src_key_padding_mask=ids == 0)[:, 0]

    return Encoder().eval()


def _compiled(model: Any, *, is_dynamic: bool) -> Any:
    import torch  # noqa: PLC0415

    # Not by torch's config, which is that of a thread: a worker would not see it.
    compile_: Any = torch.compile
    return compile_(model, dynamic=is_dynamic, recompile_limit=_SHAPES)


def _batched(run: Callable[[Any], Any], **options: Any) -> Any:
    import torch  # noqa: PLC0415

    @torch.inference_mode()
    def embed(features: dict[str, Any]) -> Any:
        return run(features["ids"])

    return inference.dynamically(embed, **({"batch_size": _SIZES[-1]} | options))


def _row(draw: random.Random) -> Any:
    import torch  # noqa: PLC0415

    return torch.tensor([[draw.randrange(1, 1000) for _ in range(draw.randint(1, _LENGTHS[-1]))]])


def _recompilations(batches: tuple[int, int], **options: Any) -> Contender:
    """Return the contender of batches of random sizes: its figure is how many graphs they compiled."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        model = _model()
        embed = _batched(_compiled(model, is_dynamic=False), **options, timeout_ms=0)
        draw = random.Random(1)  # noqa: S311
        if options:
            embed.warm_up({"ids": _row(draw)})

        def measure() -> float:
            before = _graphs()
            for _ in range(effort.of(*batches)):
                rows = [_row(draw)[0] for _ in range(draw.randint(1, _SIZES[-1]))]
                assert len(embed({"ids": rows})) == len(rows)
            return float(_graphs() - before)

        yield measure
        embed.shutdown()

    return contender


def _graphs() -> int:
    from torch._dynamo.utils import counters  # noqa: PLC0415

    return int(counters["stats"]["unique_graphs"])


def _closed_loop(*, compiles: bool | None, **options: Any) -> Contender:
    """Return the contender of 32 tasks: its figure is the rows a second."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        model = _model()
        if compiles is not None:
            model = _compiled(model, is_dynamic=not compiles)
        embed = _batched(model, **options)
        draw = random.Random(1)  # noqa: S311
        rows = [_row(draw) for _ in range(512)]
        if options:
            embed.warm_up({"ids": rows[0]})
        turns = effort.of(200, 2)
        asyncio.run(_ask(embed, rows, effort.of(100, 1)))
        yield lambda: _CALLERS * turns / asyncio.run(_ask(embed, rows, turns))
        embed.shutdown()

    return contender


async def _ask(embed: Any, rows: list[Any], turns: int) -> float:
    async def caller(number: int) -> None:
        for turn in range(turns):
            await embed.acall({"ids": rows[(number * 37 + turn) % len(rows)]})

    started = perf_counter()
    await asyncio.gather(*map(caller, range(_CALLERS)))
    return perf_counter() - started


_COMPILED = Turns(
    {"ours": _recompilations((1_000, 20), **_FIXED), "any size": _recompilations((30, 3))},
    rounds=1,
)
_RATES = Turns(
    {
        "ours": _closed_loop(compiles=True, **_FIXED),
        "compiled for any size": _closed_loop(compiles=False),
        "not compiled": _closed_loop(compiles=None),
    },
    rounds=9,
)
ROWS = (
    Row(
        "fixed sizes, recompilations",
        "graphs compiled in 1,000 random batches after warm_up, / in 30 of any size",
        _COMPILED,
        "any size",
        COUNT,
        Goal(0.0),
    ),
    Row(
        "fixed sizes / compiled for any size",
        "rows a second, 32 callers",
        _RATES,
        "compiled for any size",
        SHARE,
    ),
    Row("fixed sizes / not compiled", "rows a second, 32 callers", _RATES, "not compiled", SHARE),
)
