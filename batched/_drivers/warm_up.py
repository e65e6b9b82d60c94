"""Batches of a warm-up: they run where batches run, one in each worker, and count and teach nothing."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

from batched._core.batch import Collates
from batched._core.call import Slice
from batched._core.halves import Aside


class Round:
    """The batches of one shape: each worker takes one of them."""

    def __init__(self, has_more: Callable[[int], bool]) -> None:
        """Ask `has_more` whether more than so many workers live."""
        self._has_more = has_more
        self._idents: set[int] = set()

    def may_run(self) -> bool:
        """Whether the calling worker may take one: it has had none, or no other worker is there for it."""
        return _thread.get_ident() not in self._idents or not self._has_more(len(self._idents))

    def begins(self) -> None:
        """Note that the calling worker has taken one."""
        self._idents.add(_thread.get_ident())


class WarmUp(Aside):
    """A batch of a warm-up, for one worker."""

    __slots__ = ("_round",)

    def __init__(self, slices: list[Slice], its_round: Round | None = None) -> None:
        super().__init__(slices, sum(stop - start for _, start, stop in slices), None, None)
        self._round = its_round

    def may_start(self) -> bool:
        """Whether the calling worker may run it."""
        return self._round is None or self._round.may_run()

    def run(self, collator: Collates) -> Any:
        """Return what the batch function returns."""
        if self._round is not None:
            self._round.begins()
        return super().run(collator)
