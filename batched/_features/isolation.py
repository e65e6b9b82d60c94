"""A batch that failed runs again in parts, so that an item which makes it fail fails alone.

Of a half that fails, the other half runs before its own halves do. So one that works is found early: that
tells an item which fails from an outage. After an outage, a single item comes first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from batched._core.batch import Batch
from batched._core.halves import Half, halves_of, one_ahead, singles_of
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._features.batch_fault import BatchFault
from batched._policy.one_by_one import OneByOne
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.result_count import ResultCount
from batched._policy.search import Pause, Search
from batched._policy.size_choice import SizeChoice
from batched._policy.surroundings import is_of_surroundings

_NOT_RETRIED = (
    "the batch was not retried in halves, because it has an item that one run may use up (an iterator, an "
    "open file, a socket, a queue): so all callers of the batch get this error"
)

_AT_REST = ("failed",)
_WATCHES = ("took", "failed", "ended")


class Isolation(Feature):
    """Divides batches that fail, or that would, as the function fails for several items at once."""

    hooks: tuple[str, ...] = _AT_REST

    def __init__(self, sizes: SizeChoice, name: str) -> None:
        self._sizes = sizes
        self._name = name
        self._pause = Pause()
        self._one_by_one = OneByOne()
        self._results = ResultCount()

    def configure(self, options: Options) -> None:
        """Follow new options."""
        self._isolates = options.isolate_errors

    @property
    def is_paused(self) -> bool:
        """Whether failed batches are not divided: no item of one has worked, and nothing has since."""
        return self._pause.is_on

    # -- a batch is about to run --------------------------------------------------------------------------

    def took(self, batch: Batch, now: float) -> None:  # noqa: ARG002
        """Have less of `batch` run at once, if it cannot be right as a whole."""
        parts: list[Half] = []
        is_new = self._isolates and not isinstance(batch, Half)
        doubted = self._results.doubted
        if doubted is not None and self._sizes.smallest < doubted == self._sizes.size_of(batch.size):
            error = batch.error if isinstance(batch, Half) else None
            parts = halves_of(batch, error, batch.search)
        elif is_new and self._pause.is_on:
            parts = self._ahead(batch)
        elif is_new and batch.is_divisible and not self._one_by_one.tries:
            parts = singles_of(batch, None, Search(batch.size, self._one_by_one.failed_s, batch.units))
        if parts:
            self.river.first.divide(batch, parts)
            if batch.search is not None and batch.search.is_try:
                parts[1].behind = batch

    def _ahead(self, batch: Batch) -> list[Half]:
        """Return what runs of `batch` during a pause: nothing at first but one call, or else all of it."""
        at = self._pause.ahead(batch.units) if batch.is_divisible else None
        return [] if at is None else one_ahead(batch, at, Search(batch.size, 0.0, is_try=True))

    # -- it has failed ------------------------------------------------------------------------------------

    def failed(self, batch: Batch, error: BaseException, started: float, now: float) -> bool:
        """Have `batch`, which raised `error`, run again in parts, if an item may be to blame."""
        if batch.begun:
            return False
        self.have(*_WATCHES)
        if hasattr(batch, "blames_worker"):
            if self._runs_elsewhere(batch, error, started):
                return True
            if batch.search is not None:
                batch.search.restarted()
        if batch.is_misanswered and self._is_shown_in_parts(batch, error):
            return True
        if not self._is_worth_it(batch, error, started, now) or not self._can_repeat(batch, error):
            return False
        search = batch.search
        begins = search is None
        gone = self.river.prune(batch, started)
        parts: list[Half] = []
        if batch.size:
            if search is None:
                search = Search(batch.size, now - started, batch.units, error)
                if gone:  # before it began
                    search.lost(0)
            parts = self._parts_of(batch, error, search, begins=begins)
        self.river.run_again(batch, parts)
        return True

    def _is_shown_in_parts(self, batch: Batch, error: BaseException) -> bool:
        """Note that the function returned what it must not, whatever the items are.

        Of as many results as items, that was a guess. Then it runs in parts: if the number was right by
        chance, theirs is wrong.
        """
        self._results.was_wrong(batch.returned)
        is_guess = batch.returned == self._sizes.size_of(batch.size) > self._sizes.smallest
        if not (is_guess and self._isolates and self._can_repeat(batch, error)):
            return False
        self.river.run_again(batch, halves_of(batch, error, batch.search))
        return True

    def _can_repeat(self, batch: Batch, error: BaseException) -> bool:
        """Whether `batch` may run again; if not, note on `error` why all callers get it."""
        if self.river.can_repeat(batch):
            return True
        with contextlib.suppress(Exception):  # a class may refuse attributes
            if _NOT_RETRIED not in getattr(error, "__notes__", ()):
                error.add_note(_NOT_RETRIED)
        return False

    def _runs_elsewhere(self, batch: Batch, error: BaseException, started: float) -> bool:
        """Have `batch` run once more as it is: its worker is to blame. Then its items may be, too."""
        is_first = not isinstance(batch, Half) or batch.error is None  # a part may have been cut off ahead
        may_run = self._isolates and not self._pause.is_on and is_first
        if not may_run or not self.river.can_repeat(batch):
            return False
        self.river.prune(batch, started)
        again = [Half([*batch.slices], batch.size, error, None)] if batch.size else []
        if again:
            again[0].least_shapes = batch.shapes
        self.river.run_again(batch, again)
        return True

    def _is_worth_it(self, batch: Batch, error: BaseException, started: float, now: float) -> bool:
        """Note that `batch` raised `error`; return whether parts of it may tell more."""
        search = batch.search
        is_single = not batch.is_divisible or batch.is_misanswered
        divides = self._isolates and not is_single and isinstance(error, Exception)
        blames_worker = hasattr(batch, "blames_worker")  # it is made anew, so a connection of it is too
        if search is None:
            is_outage = not blames_worker and is_of_surroundings(error)
            return divides and not is_outage and not self._pause.is_on
        if search.is_try:
            self._failed_ahead(batch, error, started, now)
            return False
        search.failed(error, now - started, batch.size, is_single=is_single, blames_worker=blames_worker)
        if search.found_nothing:
            self._pause.found_nothing()
        if search.has_found:
            self._one_by_one.end()
        if search.is_given_up:
            self._give_up(search, error, started, now)
        return divides and not search.is_given_up

    def _failed_ahead(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Have the others of which `batch` ran ahead not run, if it still is an outage that made it fail."""
        is_outage = self._pause.is_on and not is_out_of_memory(error)
        if is_outage and batch.search is not None and not all(call.left for call in batch.calls):
            self._give_up(batch.search, error, started, now)

    def _parts_of(self, batch: Batch, error: BaseException, search: Search, *, begins: bool) -> list[Half]:
        """Return what of `batch` is to run, in this order."""
        if self._one_by_one.is_on if begins else search.prefers_singles:
            parts = singles_of(batch, error, search)
        else:
            parts = halves_of(batch, error, search)
        if self._pause.is_wary if begins else search.begins_small:
            while parts and parts[0].is_divisible:
                parts[:1] = halves_of(parts[0], error, search)  # until the first is a single item
        return parts

    def _give_up(self, search: Search, error: BaseException, started: float, now: float) -> None:
        """End the other parts with the errors that they have met."""
        first = self.river.first
        for half in [half for half in first if half.search is search]:
            first.remove(half)
            met = error if half.error is None else half.error  # an error may be false, or raise if asked
            self.river.prune(half, None if half.error is None else now)
            if half.size:
                self.river.end_unrun(half, met, started, now)

    # -- it has worked ------------------------------------------------------------------------------------

    def ended(self, run: Run) -> None:
        """Note that a batch has worked."""
        batch, search = run.batch, run.batch.search
        if search is not None and search.is_try:  # then the others run, if they still do
            for other in (*self.river.first, *self.river.running):
                other.search = None if other.search is search else other.search
        if run.error is not None:
            return
        self._pause.worked(is_part=search is not None)
        self._results.was_right(self._sizes.size_of(batch.size))
        is_single = not batch.is_divisible
        if search is None or not search.failures:  # it has run before any larger batch did
            self._one_by_one.worked(run.now - run.started, is_single=is_single)
        if search is not None:
            raised = search.error
            search.worked(run.now - run.started, batch.size, is_single=is_single)
            if search.has_ended_well and self._one_by_one.searched(search) and raised is not None:
                self.river.afterwards(BatchFault(self._name, raised, self.river.counters).log)
        if not (self._one_by_one.is_alert or self._pause.is_wary or self._results.doubted):
            batches = (*self.river.running, *self.river.first)
            if all(each.search is None for each in batches):
                self.have(*_AT_REST)

    def figures(self) -> Mapping[str, Any]:
        """Return whether it pauses."""
        return {"isolation_paused": self.is_paused}
