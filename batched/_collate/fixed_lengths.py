"""Rows that are padded to one of a few lengths, or to a multiple: how long a call is to its batch.

With a few lengths, rows that are longer are refused as their call comes.
"""

from __future__ import annotations

from collections.abc import Hashable

from batched._collate.pad import rounded
from batched._collate.signature import Features
from batched._core.options import ArrayOptions


class FixedLengths:
    """Knows the lengths that the rows of each feature may have."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._steps_of = options.steps_of
        self._has_lengths = bool(options.pad_to_lengths)

    def longest(self, inputs: Features) -> int:
        """Return the longest length of the rows of a call, padded; `ValueError` if a row is too long.

        If some features may have some lengths only, it is that of the features that are padded: the others
        need no padding.
        """
        padded = inputs.lengths[:]
        longest = 0
        for index, (key, length) in enumerate(zip(inputs.signature.keys, inputs.lengths, strict=True)):
            steps = self._steps_of(key)
            if steps != 1 and length is not None:
                most = max(length) if isinstance(length, list) else length
                padded[index] = most = self._padded(key, most, steps)
                longest = max(longest, most)
        return (self._has_lengths and longest) or inputs.signature.length(inputs.lengths, padded)

    def _padded(self, key: Hashable, length: int, steps: int | tuple[int, ...]) -> int:
        if not isinstance(steps, int) and length > steps[-1]:
            raise ValueError(
                f"{self._name}: {key!r} has a row of length {length}, but the longest of pad_to_lengths is "
                f"{steps[-1]}"
            )
        return rounded(length, steps)
