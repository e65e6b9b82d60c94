"""What callers of `batched.inference` pass, the functions they call, and the same done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = [
    "BATCH",
    "CALLERS",
    "KEYS",
    "Features",
    "block",
    "copied_slices",
    "doubled",
    "filled_by_hand",
    "rows",
    "sums",
]

CALLERS = 256
BATCH = 64
KEYS = ("input_ids", "attention_mask", "token_type_ids")
_LONGEST = 128
_COLUMNS = 64

Features = dict[str, Any]


def rows(count: int) -> list[Features]:
    """Return the same single rows every time, of many lengths; the ids of each sum up to its position."""
    random = np.random.default_rng(0)
    made = []
    for position, length in enumerate(random.integers(1, _LONGEST + 1, count)):
        features = {key: random.integers(1, 1000, (1, length)) for key in KEYS}
        ids = features[KEYS[0]]
        ids[0, -1] += position - ids.sum()
        made.append(features)
    return made


def sums(features: Features) -> Any:
    """Return a number per row that padding with zeros does not change."""
    return features[KEYS[0]].sum(1)


def filled_by_hand(calls: list[Features], zeros: Callable[[tuple[int, int]], Any]) -> Iterator[Features]:
    """Yield each batch of single rows, written row by row into buffers of zeros."""
    for start in range(0, len(calls), BATCH):
        batch = calls[start : start + BATCH]
        longest = max(features[KEYS[0]].shape[1] for features in batch)
        padded = {}
        for key in KEYS:
            padded[key] = buffer = zeros((len(batch), longest))
            for at, features in enumerate(batch):
                row = features[key]
                buffer[at, : row.shape[1]] = row
        yield padded


def block(count: int) -> Features:
    """Return one call's rows, all alike: whole numbers, as 0.1.5 makes whole numbers of all."""
    return {"x": np.arange(count * _COLUMNS, dtype=np.float32).reshape(count, _COLUMNS) % 1000}


def doubled(features: Features) -> Any:
    """Do next to nothing."""
    return features["x"] * 2


def copied_slices(features: Features, batch_size: int) -> Any:
    """Double a block with nothing but the function and two copies: the batch's own, and into the whole."""
    count = len(features["x"])
    whole = None
    for start in range(0, count, batch_size):
        piece = slice(start, start + batch_size)
        outputs = doubled({key: array[piece].copy() for key, array in features.items()})
        if whole is None:  # only now is its shape known
            whole = np.empty((count, *outputs.shape[1:]), outputs.dtype)
        whole[piece] = outputs
        del outputs  # the next take its place, which the processor has at hand
    return whole
