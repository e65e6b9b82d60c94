"""Which answers and errors a caller may get: those of plain evaluation, and what the documents allow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent import futures
from typing import Any
from weakref import WeakSet

from batched import BatchError, ClosedError, OverloadError, QueueFullError
from batched._remote.failures import RemoteTraceback
from batched.errors import ResultTypeError
from tests.differential.plan import Ask, Plan, pieces_of, serial_of
from tests.differential.work import (
    FATAL,
    CallbackFault,
    Fault,
    Work,
    answer,
    array_answer,
    row,
)

_PADDED = frozenset({"tokens", 1})  # outputs, by name or position, that have a place for each of the row's
_COARSE_MS = 1.5  # the clock of some event loops


class SourceError(Exception):
    """What the source of a map raises."""


class Judge:
    """Knows all that a run allows; what is not allowed is noted as a violation."""

    def __init__(self, plan: Plan, work: Work) -> None:
        self.plan = plan
        self.work = work
        self.bounds = {plan.options.get("max_queue_size")}
        """All that `max_queue_size` has been, and so on. What is configured is noted first."""
        self.on_full = {plan.options.get("on_full", "raise")}
        self.isolates = {plan.options["isolate_errors"]}
        self.closing = threading.Event()
        """Set before it is shut down."""
        self.left_loops: WeakSet[Any] = WeakSet()  # a closed loop may hold what was sent to it in that moment
        """Loops of which all tasks are cancelled."""

    def configured(self, change: Mapping[str, Any]) -> None:
        """Allow what follows from a change, before it is made."""
        for name, values in (
            ("max_queue_size", self.bounds),
            ("on_full", self.on_full),
            ("isolate_errors", self.isolates),
            ("batch_size", self.work.sizes),
            ("max_concurrent_batches", self.work.widths),
            ("max_batch_length", self.work.budgets),
        ):
            if name in change:
                values.add(change[name])

    # -- answers ----------------------------------------------------------------------------------------

    def answered(self, ask: Ask, got: Any) -> None:
        """Check the answer of a whole call."""
        if not ask.many:
            self.element(ask, 0, got)
            return
        if type(got) is not list or len(got) != len(ask.elements):
            self._violated(ask, f"{len(ask.elements)} items are answered by {got!r}")
            return
        for place, one in enumerate(got):
            self.element(ask, place, one)
        got.clear()  # no other caller may notice

    def element(self, ask: Ask, place: int, got: Any) -> None:
        """Check the answer of one item, or of all rows of one call of arrays."""
        numbers = ask.elements[place]
        if isinstance(got, BaseException):
            if not ask.option("return_exceptions"):
                self._violated(ask, f"item {place} is answered by {got!r}")
            self.failed(ask, got, [numbers])
            return
        if faults := {self.plan.fault_of(number) for number in numbers} - {None}:
            self._violated(ask, f"item {place} cannot succeed ({faults}), and is answered by {got!r}")
        elif self.plan.shape == "arrays":
            self._arrays(ask, place, got)
        else:
            (number,) = numbers
            expected = answer(
                self.plan, self.plan.salt_of(ask.instance), number, number % 5 if ask.second else None
            )
            if got != expected:
                self._violated(ask, f"item {place} is answered by {got!r}, not {expected!r}")

    def _arrays(self, ask: Ask, place: int, got: Any) -> None:
        rows = [row(number, ask.layout) for number in ask.elements[place]]
        expected = [
            _parts(array_answer(self.plan, self.plan.salt_of(ask.instance), one[None])) for one in rows
        ]
        theirs = _parts(got)
        if expected and expected[0].keys() != theirs.keys():
            self._violated(ask, f"item {place} is answered by {got!r}")
            return
        for name, part in theirs.items():
            if len(part) != len(rows):
                self._violated(ask, f"{len(rows)} rows are answered by {name} of {len(part)}")
                return
            for at, (one, other) in enumerate(zip(part, expected, strict=True)):
                if name in _PADDED and not self.plan.options["unpad_outputs"]:
                    one = self._without_zeros(one, len(other[name][0]))  # noqa: PLW2901
                if not _alike(one, other[name][0]):
                    self._violated(ask, f"row {at} of {place}, {name}: {one!r}, not {other[name][0]!r}")
                    return
            for one in part if isinstance(part, list) else [part]:
                one[...] = -7  # no other caller may notice

    def _without_zeros(self, padded: Any, length: int) -> Any:
        """Return a row without the zeros that are there for padding; as it is if there are others."""
        cut = len(padded) - length
        left = self.plan.options["padding_side"] == "left"
        own, padding = (padded[cut:], padded[:cut]) if left else (padded[:length], padded[length:])
        return own if cut >= 0 and not padding.any() else padded

    def pieces(self, ask: Ask, got: list[Any], *, ended: bool) -> None:
        """Check the pieces of a stream that have come until it `ended`, or its consumer left or it failed."""
        ((number,),) = ask.elements
        fault = self.plan.fault_of(number)
        pieces = fails_at = pieces_of(number)
        strikes = serial_of(number) % 3
        if (fault in {"raised", "fatal", "short"} and strikes <= pieces) or (
            fault == "returned" and strikes < pieces
        ):
            fails_at = strikes
            if ended:
                self._violated(ask, f"a stream that fails ended with {got}")
        if fault in {"unmeasured", "ungrouped"}:
            fails_at = 0
        if len(got) > fails_at or (ended and len(got) != pieces):
            self._violated(ask, f"a stream of {fails_at} pieces gave {len(got)}")
        for step, piece in enumerate(got):
            if piece != (self.plan.salt_of(ask.instance), number, step):
                self._violated(ask, f"piece {step} is {piece!r}")
                return

    # -- errors -----------------------------------------------------------------------------------------

    def failed(  # noqa: PLR0913
        self,
        ask: Ask,
        error: BaseException,
        elements: list[tuple[int, ...]] | tuple[tuple[int, ...], ...],
        *,
        elapsed_s: float | None = None,
        left: bool = False,
        on_loop: bool = False,
    ) -> None:
        """Check an error that was raised for one of the `elements`, or is in the place of one."""
        numbers = {number for element in elements for number in element}
        why_not = self._why_not(ask, error, numbers, left=left)
        is_late = isinstance(error, TimeoutError) and not isinstance(
            error, OverloadError
        )  # else given up early
        if is_late and not why_not and elapsed_s is not None:
            early_ms = ask.option("deadline_ms") - elapsed_s * 1000
            if early_ms > _COARSE_MS and not ask.way.endswith("map"):
                why_not = f"it comes {early_ms} ms before the deadline"
        if on_loop and (
            not isinstance(error, (Exception, asyncio.CancelledError)) or isinstance(error, StopIteration)
        ):
            why_not = why_not or "it may not reach an event loop"
        if not why_not:
            why_not = self._is_shared(ask, error)
        if why_not:
            self._violated(ask, f"{error!r} from {error.__cause__!r}: {why_not}", error)

    def _is_shared(self, ask: Ask, error: BaseException) -> str:
        """Say so if the same object has reached another caller: each has a copy of its own."""
        asked, same = vars(error).setdefault("_reached", (id(ask), id(error)))
        return "another caller has the same object" if same == id(error) and asked != id(ask) else ""

    def _why_not(self, ask: Ask, error: BaseException, numbers: set[int], *, left: bool) -> str:  # noqa: C901, PLR0911
        """Return why an error may not reach the caller of `numbers`, "" if it may."""
        if isinstance(error, SourceError):
            return "" if ask.breaks else "the source did not raise it"
        if _is_traced(error):
            return self._why_not_fault(ask, error, numbers)
        if isinstance(error, TimeoutError):
            return "" if ask.option("deadline_ms") else "there is no deadline"
        if isinstance(error, (asyncio.CancelledError, futures.CancelledError)):
            cancels = self.plan.ending == "cancel" and self.closing.is_set()
            return "" if left or cancels else "its caller has not left"
        if isinstance(error, QueueFullError):
            allowed = self.bounds != {None} and "raise" in self.on_full and not ask.way.endswith("map")
            return "" if allowed else "there is no bound"
        if isinstance(error, ClosedError):
            return "" if self.closing.is_set() else "it has not been shut down"
        cause = None if isinstance(error.__cause__, RemoteTraceback) else error.__cause__
        if isinstance(error, BatchError) and cause is not None:
            if isinstance(cause, CallbackFault):
                fault, number = cause.args
                return "" if number in numbers and self.plan.fault_of(number) == fault else "of another item"
            if isinstance(cause, Exception) and not isinstance(cause, StopIteration):
                return "it could have come as it was"
            return (
                self._why_not_fault(ask, cause, numbers)
                if _is_traced(cause)
                else "it is no fault of the function"
            )
        if "can never fit" in str(error):
            fits = all(bound is None or ask.size <= bound for bound in self.bounds.copy())
            return "there is room" if fits or ask.way.endswith("map") else ""
        for kind, expected in (("short", BatchError), ("nothing", ResultTypeError)):
            if type(error) is expected:
                return self._why_not_wrong(ask, kind, numbers)
        return "it is none of those that the documents name"

    def _why_not_fault(self, ask: Ask, error: BaseException, numbers: set[int]) -> str:
        number, batch_number = error.args
        batch = self.work.batches[batch_number]
        fault = self.plan.fault_of(number)
        kinds = {"returned": (Fault,), "raised": (Fault, StopIteration), "fatal": FATAL}.get(fault or "", ())
        if type(error) not in kinds or number not in batch.numbers or batch.instance != ask.instance:
            return "the function did not raise it"
        if number in numbers:
            return ""
        if fault == "returned":
            return "it is in the place of another item"
        if fault == "raised" and self._isolates(ask):
            return "it is another item's, and errors are isolated"
        return "" if batch.numbers & numbers or self._may_wait_behind(ask) else "it is that of another batch"

    def _may_wait_behind(self, ask: Ask) -> bool:
        """Whether a call may have had the error of one that ran ahead of it, and not have run itself."""
        return True in self.isolates and self.work.may_seem_an_outage(ask.instance)

    def _isolates(self, ask: Ask) -> bool:
        """Whether no item can have failed because of another: what streams has begun by then."""
        is_off = self.isolates != {True} or self.plan.shape == "stream"
        return not is_off and not self.work.may_seem_an_outage(ask.instance)

    def _why_not_wrong(self, ask: Ask, kind: str, numbers: set[int]) -> str:
        """Return why no batch of the `numbers` can have come back wrong."""
        if any(self.plan.fault_of(number) == kind for number in numbers):
            return ""
        # A wrong number or kind of results is not divided: all calls of such a batch have the error.
        wrong = (b for b in self.work.batches if b.went_wrong == kind and b.instance == ask.instance)
        ahead = self._may_wait_behind(ask)
        is_explained = any(ahead or each.numbers & numbers for each in wrong)
        return "" if is_explained else f"no batch came back wrong ({kind})"

    def _violated(self, ask: Ask, what: str, error: BaseException | None = None) -> None:
        trace = []
        while error is not None and error.__traceback__ is not None and len(trace) < 1:
            at = error.__traceback__
            while at.tb_next is not None:
                at = at.tb_next
            trace.append(f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}")
        self.work.violated(f"{what} {' '.join(trace)}\n    asked: {ask}")


def _is_traced(error: BaseException) -> bool:
    return isinstance(error, (Fault, StopIteration, *FATAL)) and len(error.args) == 2


def _parts(results: Any) -> dict[Any, Any]:
    if isinstance(results, dict):
        return results
    return dict(enumerate(results)) if isinstance(results, tuple) else {0: results}


def _alike(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and one.dtype == other.dtype
        and tuple(one.shape) == tuple(other.shape)
        and bool((one == other).all())
    )
