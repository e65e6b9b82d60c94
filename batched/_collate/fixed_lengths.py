"""Rows that are padded to one of a few lengths: longer ones are refused as their call comes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from typing import Any

from batched._collate.signature import Features
from batched._core.options import ArrayOptions


class FixedLengths:
    """Knows the lengths that the rows of each feature may have."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._lengths_of = options.lengths_of

    def longest(self, inputs: Features) -> int | None:
        """Return the longest length of the rows of a call, padded; `ValueError` if a row is too long.

        Of the features that may have some lengths only; None if there are none of these.
        """
        longest = 0
        for key, length in zip(inputs.signature.keys, inputs.lengths, strict=True):
            steps = self._lengths_of(key)
            if steps is not None and length is not None:
                longest = max(longest, self._padded(key, length, steps))
        return longest or None

    def _padded(self, key: Hashable, lengths: Any, steps: tuple[int, ...]) -> int:
        length: int = max(lengths) if isinstance(lengths, list) else lengths
        if length > steps[-1]:
            raise ValueError(
                f"{self._name}: {key!r} has a row of length {length}, but the longest of pad_to_lengths is "
                f"{steps[-1]}"
            )
        return steps[bisect_left(steps, length)]
