"""The batch function of a run: plain evaluation, faults, and notes of what it was called with."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import count
from typing import Any

import numpy as np

import batched
from tests.differential.plan import Plan, draw, length_of, number_of, pieces_of, serial_of
from tests.kit.optional import torch

OWNER: ContextVar[int] = ContextVar("owner")
"""The number of the caller."""

SCRIBBLED = number_of(20_000, None)
"""An item that is in no call: what callers change their arrays to."""

_PLACES = 16  # how many numbers there are for the places of a row
_STEPS = 20_000
_OUTAGE = 3  # runs: a batch of two items that both fail, and its halves


class Fault(Exception):
    """What the batch function raises, or returns, for an item: its number and the number of the batch."""


class Fatal(BaseException):
    """The same, but no `Exception`."""


class CallbackFault(Exception):
    """What `length`, `group_by` and `cache_key` raise for an item."""


FATAL: tuple[type[BaseException], ...] = (
    Fatal,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
)


class Item:
    """An item of a list, which knows its caller, and of which it can be seen whether it is still kept."""

    __slots__ = ("__weakref__", "number", "owner", "plan")

    def __init__(self, number: int, owner: int, plan: Plan) -> None:
        self.number = number
        self.owner = owner
        self.plan = plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __len__(self) -> int:
        if self.plan.fault_of(self.number) == "unmeasured":
            raise CallbackFault("unmeasured", self.number)
        return length_of(self.number)

    def __repr__(self) -> str:
        return f"<item {self.number} of {self.owner}>"

    def __reduce__(self) -> Any:
        return _item, (self.number, self.owner, self.plan.seed)


def _item(number: int, owner: int, seed: int) -> Item:
    return Item(number, owner, _drawn(seed))


_drawn = cache(draw)


# -- plain evaluation -----------------------------------------------------------------------------------


def answer(plan: Plan, salt: int, number: int, second: int | None) -> Any:
    """Return what an item of a list is answered by."""
    if plan.outputs == "array":
        return number * 3 + salt + (second or 0) * 1_000_003
    return salt, number, second


def row(number: int, layout: tuple[str, str, int]) -> Any:
    """Return the row of arrays that an item is."""
    library, dtype, trailing = layout
    places = max(length_of(number), 1)
    numbers = 1 + number * _PLACES + np.arange(places) % _PLACES
    block = numbers.astype(dtype)
    if trailing:
        block = np.repeat(block[:, None], trailing, axis=1)
    return torch.from_numpy(block) if library == "torch" else block


def array_answer(plan: Plan, salt: int, x: Any) -> Any:
    """Return what the function makes of the rows `x`."""
    real = x > 0
    sums = (x * real).sum(1) + salt
    if plan.outputs == "array" and not plan.options["unpad_outputs"]:
        return sums
    tokens = (x * 3 + salt) * real
    if plan.outputs == "tuple" and not isinstance(plan.options["unpad_outputs"], dict):
        return sums, tokens
    return {"sums": sums, "tokens": tokens}


def numbers_of_rows(x: Any) -> list[int]:
    """Return the items that the rows are."""
    return [int((one.max() - 1) // _PLACES) for one in x]


# -- the batch function ---------------------------------------------------------------------------------


class Batch:
    """One run of the function."""

    def __init__(self, number: int, instance: int, salt: int, numbers: list[int]) -> None:
        self.number = number
        self.instance = instance
        self.salt = salt
        self.numbers = frozenset(numbers)
        self.size = len(numbers)
        self.went_wrong = ""
        """What its callers were given instead of results: "short", "nothing" or ""."""
        self.raised = False
        self.where: Any = None
        """Its instance, and its loop if each loop has batches of its own."""


class Work:
    """What the batch functions of a run do, and have done."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.violations: list[str] = []
        self.batches: list[Batch] = []
        self.sizes = {plan.options["batch_size"]}
        self.widths = {plan.options["max_concurrent_batches"]}
        """All that `batch_size` has been, and ..."""
        self.budgets = {plan.options.get("max_batch_length")}
        """... all that `max_batch_length` has been."""
        self.steps = 0
        """Of streams that are refilled, where each counts as a batch."""
        self.ended = False
        """Whether no batch may start any more."""
        self.stages: dict[str, Any] = {}
        """The options of stages."""
        self._numbers = count()
        self._lock = threading.Lock()
        self._running: Counter[Any] = Counter()
        self._kept: dict[Any, list[Any]] = {}

    def violated(self, what: str) -> None:
        """Note that something is not as it is said to be."""
        kind = what[:30]
        if len(self.violations) < 20 and sum(each[:30] == kind for each in self.violations) < 2:
            self.violations.append(what[:2000])

    @contextmanager
    def running(self, instance: int, numbers: list[int], items: Any) -> Iterator[Batch]:
        """Note a batch for as long as it runs."""
        where: Any = instance
        if self.plan.drive == "aio":
            where = instance, asyncio.get_running_loop()
        with self._lock:
            batch = Batch(next(self._numbers), instance, self.plan.salt_of(instance), numbers)
            batch.where = where
            self.batches.append(batch)
            self._running[where] += 1
            at_once = self._running[where]
        try:
            self._check(batch, numbers, items, at_once)
            if self.plan.memory is not None and batch.size > self.plan.memory:
                self.steps += 1
                raise MemoryError(batch.number)
            yield batch
        except BaseException:
            batch.raised = True
            raise
        finally:
            with self._lock:
                self._running[where] -= 1

    def may_seem_an_outage(self, instance: int) -> bool:
        """Return whether so many runs have failed in a row that batches may not be divided any more."""
        failed: dict[Any, list[bool]] = {}
        for each in self.batches:
            if each.instance == instance:
                failed.setdefault(each.where, []).append(each.raised or bool(each.went_wrong))
        if max(self.widths) > 1:  # it is not known in which order they have ended
            return sum(map(sum, failed.values())) >= _OUTAGE
        return any(
            all(runs[at : at + _OUTAGE]) for runs in failed.values() for at in range(len(runs) - _OUTAGE + 1)
        )

    def _check(self, batch: Batch, numbers: list[int], items: Any, at_once: int) -> None:
        plan = self.plan
        if self.ended:
            self.violated(f"a batch of {batch.size} started after the end")
        if at_once > max(self.widths):
            self.violated(f"{at_once} batches run at once")
        if batch.size > max(self.sizes) or (not batch.size and plan.shape != "arrays"):
            self.violated(f"a batch of {batch.size} items")
        sizes = plan.options.get("batch_sizes")
        if sizes and batch.size not in sizes:
            self.violated(f"a batch of {batch.size} items, which is none of {sizes}")
        groups = {plan.group_of(number) for number in numbers if number != SCRIBBLED}
        if plan.options.get("group_by") and len(groups) > 1:
            self.violated(f"a batch of several groups: {numbers}")
        budgets = self.budgets.copy()  # another thread adds to it
        if None not in budgets and batch.size > min(sizes or (1,)):
            lengths = [length_of(number) for number in numbers]
            cost = max(lengths) * batch.size if plan.shape == "arrays" else sum(lengths)
            multiple = plan.options.get("pad_to_multiple_of") or 1
            if cost > max(budgets) + multiple * batch.size:
                self.violated(f"a batch of lengths {lengths}")
        if batch.number % 8 == 0 and plan.shape != "arrays" and items is not None:
            self._check_contexts(items)

    def _check_contexts(self, items: list[Item]) -> None:
        """See that each item comes with the context of its caller, which can be entered."""
        current = batched.current_batch()
        contexts = current.contexts
        copies = bool(self.plan.options.get("batch_sizes")) and current.size < len(items)
        if len(contexts) != len(items) or (current.size != len(items) and not copies):
            self.violated(f"{len(contexts)} contexts of {current.size} for {len(items)} items")
            return
        for item, context in zip(items, contexts, strict=True):
            if context.get(OWNER, item.owner) != item.owner:
                self.violated(f"{item} comes with the context of {context[OWNER]}")

        def enter(left: list[Any]) -> None:
            if left:
                left[0].run(enter, left[1:])

        try:
            enter(contexts[:4])
        except RuntimeError as error:
            self.violated(f"contexts of a batch: {error}")

    def pause(self, batch: Batch) -> float:
        """Return how long a batch takes."""
        delays = self.plan.delays
        return delays[batch.number % len(delays)]

    def raise_faults(self, batch: Batch, numbers: list[int], step: int | None = None) -> None:
        """Raise what the items make the function raise; of a stream, at its `step`."""
        for number in numbers:
            if step is not None and step != serial_of(number) % 3:
                continue
            fault = self.plan.fault_of(number)
            if fault == "raised":
                plain = step is None and not self.plan.awaits and serial_of(number) % 5 == 0
                raise (StopIteration if plain else Fault)(number, batch.number)
            if fault == "fatal":
                raise FATAL[serial_of(number) % len(FATAL)](number, batch.number)

    def went_wrong(self, batch: Batch, numbers: list[int]) -> str:
        """Return, and note, what is wrong with the results of a batch: "short", "nothing" or ""."""
        faults = {self.plan.fault_of(number) for number in numbers}
        batch.went_wrong = next((fault for fault in ("short", "nothing") if fault in faults), "")
        return batch.went_wrong

    def results(self, batch: Batch, x: Any, y: Any) -> Any:
        """Return what the function returns for its batch."""
        plan = self.plan
        numbers = self.numbers(x)
        self.raise_faults(batch, numbers)
        wrong = self.went_wrong(batch, numbers)
        if wrong == "nothing":
            return (None, 7, iter(numbers))[batch.number % 3]
        if plan.shape == "arrays":
            if wrong:
                return array_answer(plan, batch.salt, x[:-1])
            results = array_answer(plan, batch.salt, x)
            if plan.clears:
                x[...] = -5
            return results
        seconds = y if y is not None else [None] * len(x)
        rows = [
            Fault(number, batch.number)
            if plan.fault_of(number) == "returned"
            else answer(plan, batch.salt, number, second)
            for number, second in zip(numbers, seconds, strict=True)
        ]
        if wrong:
            rows = rows[:-1] if batch.number % 2 else [*rows, rows[0]]
        if plan.clears:
            x.clear()
        return self._returned(batch, rows)

    def _returned(self, batch: Batch, rows: list[Any]) -> Any:
        plan = self.plan
        if plan.outputs == "array":
            return np.array(rows, np.int64)
        if plan.outputs == "tuple":
            return tuple(rows)
        is_last = plan.main_stage == ("finish" if "finish" in plan.stages else "function")
        if plan.outputs == "reused" and plan.options["max_concurrent_batches"] == 1 and is_last:
            kept = self._kept.setdefault((batch.instance, threading.get_ident()), [])
            kept[:] = rows
            return kept
        return rows

    def numbers(self, x: Any) -> list[int]:
        """Return the items that the function was given."""
        return numbers_of_rows(x) if self.plan.shape == "arrays" else [item.number for item in x]

    def pieces(self, batch: Batch, numbers: list[int], step: int) -> tuple[list[Any], bool]:
        """Return what a stream yields at a step, and whether that is the last."""
        if step > _STEPS:
            self.violated("a stream was never stopped")
            raise Fault(-1, batch.number)
        self.raise_faults(batch, numbers, step)
        pieces = [self._piece(batch, number, step) for number in numbers]
        faults = {self.plan.fault_of(number) for number in numbers if serial_of(number) % 3 == step}
        if "short" in faults:
            batch.went_wrong = "short"
            pieces.pop()
        return pieces, all(piece is batched.DONE for piece in pieces)

    def refilled(self, batch: Batch, rows: list[list[int]]) -> list[Any]:
        """Return what a stream that is refilled yields for `rows`, each an item and its own step."""
        with self._lock:
            self.steps += 1
        pieces = []
        for number, step in rows:
            if step > _STEPS:
                self.violated("a stream was never stopped")
                raise Fault(-1, batch.number)
            self.raise_faults(batch, [number], step)
            pieces.append(self._piece(batch, number, step))
        if any(
            self.plan.fault_of(number) == "short" and serial_of(number) % 3 == step for number, step in rows
        ):
            batch.went_wrong = "short"
            pieces.pop()
        return pieces

    def changed(self, batch: Batch, rows: list[list[int]], change: Any) -> list[list[int]]:
        """Return the rows after a change; note what is wrong with it."""
        limits = self.plan.options
        joined = [item.number for item in change.joined]
        rows = [row for at, row in enumerate(rows) if at not in change.left]
        most, longest = limits.get("max_joining"), limits.get("max_joining_length")
        if rows and most is not None and len(joined) > most:
            self.violated(f"{len(joined)} items joined at once")
        if rows and longest is not None and len(joined) > 1 and sum(map(length_of, joined)) > longest:
            self.violated(f"items of lengths {[length_of(number) for number in joined]} joined at once")
        rows += [[number, 0] for number in joined]
        if not rows:
            self.violated("a function is asked for no pieces")
        batch.numbers |= {*joined}
        batch.size = len(rows)
        if joined:
            self._check(batch, [number for number, _ in rows], None, 0)
        return rows

    def _piece(self, batch: Batch, number: int, step: int) -> Any:
        if step >= pieces_of(number):
            return batched.DONE
        if self.plan.fault_of(number) == "returned" and step == serial_of(number) % 3:
            return Fault(number, batch.number)
        return batch.salt, number, step


# -- the function as it is decorated --------------------------------------------------------------------

_REFILLED = """async with aclosing(_arefilled{call}) as steps:
        pieces = await anext(steps)
        while True:
            pieces = await steps.asend((yield pieces))"""
_STREAMS = """async with aclosing(_asteps{call}) as steps:
        async for pieces in steps:
            yield pieces"""
_SOURCE = """
{kind}def embed({me}x{second}):
    {body}
"""


def function(plan: Plan, work: Work) -> Any:
    """Return the batch function, to be decorated: a method where it binds to something."""
    me = {"method": "self", "callable": "self", "classmethod": "cls"}.get(plan.binding)
    arrays = plan.shape == "arrays"
    takes_two = plan.options["spread_kwargs"] if arrays else plan.shape == "columns"
    features = "x" if arrays and not takes_two else "{'x': x, 'y': y}" if arrays else "x"
    y = "y" if takes_two and not arrays else "None"
    call = f"(work, {f'{me}.number' if me else 0}, {features}, {y})"
    if plan.shape == "stream":
        body = _STREAMS if plan.awaits else "yield from _steps{call}"
        if plan.options.get("continuous"):
            body = _REFILLED if plan.awaits else "yield from _refilled{call}"
        body = body.format(call=call)
    else:
        body = f"return await _arun{call}" if plan.awaits else f"return _run{call}"
    if plan.stages:
        return _staged_function(plan, work, me=me or "", features=features, y=y, takes_two=takes_two)
    source = _SOURCE.format(
        kind="async " if plan.awaits else "",
        me=f"{me}, " if me else "",
        second=", y=None" if takes_two else "",
        body=body,
    )
    scope = {
        "aclosing": aclosing,
        "work": work,
        "_run": _run,
        "_arun": _arun,
        "_steps": _steps,
        "_asteps": _asteps,
        "_refilled": _refilled,
        "_arefilled": _arefilled,
    }
    exec(source, scope)
    return scope["embed"]


class Packed:
    """What one stage hands to the next: the items, or what the main stage has made of them."""

    def __init__(self, instance: int, x: Any, y: Any) -> None:
        self.instance = instance
        self.x = x
        self.y = y
        self.has_run = False
        self.outputs: Any = None
        self.thread: int | None = None  # in which it was in the last stage


class Stages:
    """The stages of a run: the main one does what the function does elsewhere, the others hand things on."""

    def __init__(self, plan: Plan, work: Work) -> None:
        self.plan = plan
        self.work = work
        self._lock = threading.Lock()
        self._inside: Counter[Any] = Counter()

    @contextmanager
    def _alone(self, stage: str, packed: Packed) -> Iterator[None]:
        """See that no other batch of the instance is in the stage; on loops, of the loop.

        Of workers that are shared, each has one batch at most, for all its stages.
        """
        if self.plan.drive == "aio":  # each loop has stages of its own, and a thread does not know its loop
            yield
            return
        shares, most = self.plan.shares_workers, 1
        where = stage, packed.instance
        if shares:
            where, most = (stage, 0), self.plan.options["max_concurrent_batches"]
            if packed.thread not in {None, threading.get_ident()}:
                self.work.violated(f"another worker than that of the stage before has the stage {stage}")
            packed.thread = threading.get_ident()
        with self._lock:
            self._inside[where] += 1
            if self._inside[where] > most and (shares or stage != "prepare" or self.plan.instances == 1):
                self.work.violated(f"{self._inside[where]} batches in the stage {stage}")
        try:
            yield
        finally:
            with self._lock:
                self._inside[where] -= 1

    def take(self, stage: str, packed: Packed) -> Packed:
        """Have `packed` pass a stage."""
        with self._alone(stage, packed):
            if stage == self.plan.main_stage:
                packed.outputs = _run(self.work, packed.instance, packed.x, packed.y)
                packed.has_run = True
                packed.x = packed.y = None
        return packed

    async def atake(self, stage: str, packed: Packed) -> Packed:
        """Have `packed` pass a stage."""
        with self._alone(stage, packed):
            if stage == self.plan.main_stage:
                packed.outputs = await _arun(self.work, packed.instance, packed.x, packed.y)
                packed.has_run = True
                packed.x = packed.y = None
        return packed


_STAGED = """
{pkind}def prepare(x{second}):
    return {pwait}("prepare", Packed(0, {features}, {y}))

{kind}def embed({me}{items}):
    packed = {packed}
    packed.instance = {number}
    packed = {wait}("function", packed)
    return {unpacks}

{fkind}def finish(packed):
    return ({fwait}("finish", packed)).outputs
"""


def _staged_function(  # noqa: PLR0913
    plan: Plan, work: Work, *, me: str, features: str, y: str, takes_two: bool
) -> Any:
    """Return the batch function of a run with stages; they are its attributes."""
    stages = Stages(plan, work)
    prepares, finishes = ("prepare" in plan.stages), ("finish" in plan.stages)
    second = ", y=None" if takes_two else ""
    on_loop = plan.drive == "aio"

    def kinds(stage: str) -> tuple[str, str]:
        """Return how a stage is defined and waits: on loops the main one is on the loop."""
        is_async = on_loop and (stage == plan.main_stage or plan.seed % 2 == 0)
        if stage == "function":
            is_async = plan.awaits
        return ("async ", "await atake") if is_async else ("", "take")

    (pkind, pwait), (kind, wait), (fkind, fwait) = map(kinds, ("prepare", "function", "finish"))
    source = _STAGED.format(
        pkind=pkind,
        pwait=pwait,
        kind=kind,
        wait=wait,
        fkind=fkind,
        fwait=fwait,
        second=second,
        features=features,
        y=y,
        me=f"{me}, " if me else "",
        items="packed" if prepares else f"x{second}",
        packed="packed" if prepares else f"Packed(0, {features}, {y})",
        number=f"{me}.number" if me else "0",
        unpacks="packed" if finishes else "packed.outputs",
    )
    scope: dict[str, Any] = {"Packed": Packed, "take": stages.take, "atake": stages.atake}
    exec(source, scope)
    work.stages = {name: scope[name] for name in plan.stages}
    return scope["embed"]


def _x(work: Work, x: Any) -> Any:
    return x["x"] if work.plan.shape == "arrays" else x


def _run(work: Work, instance: int, x: Any, y: Any) -> Any:
    x = _x(work, x)
    with work.running(instance, work.numbers(x), x) as batch:
        time.sleep(work.pause(batch))
        return work.results(batch, x, y)


async def _arun(work: Work, instance: int, x: Any, y: Any) -> Any:
    x = _x(work, x)
    with work.running(instance, work.numbers(x), x) as batch:
        await asyncio.sleep(work.pause(batch))
        return work.results(batch, x, y)


def _steps(work: Work, instance: int, x: Any, y: Any) -> Iterator[Any]:
    numbers = work.numbers(x)
    with work.running(instance, numbers, x) as batch:
        x.clear()
        for step in count():
            pieces, is_last = work.pieces(batch, numbers, step)
            yield pieces
            if is_last:
                return
            time.sleep(0.0002 if step > 3 else work.pause(batch))


async def _asteps(work: Work, instance: int, x: Any, y: Any) -> Any:
    numbers = work.numbers(x)
    with work.running(instance, numbers, x) as batch:
        x.clear()
        for step in count():
            pieces, is_last = work.pieces(batch, numbers, step)
            yield pieces
            if is_last:
                return
            await asyncio.sleep(0.0002 if step > 3 else work.pause(batch))


def _refilled(work: Work, instance: int, x: Any, y: Any) -> Iterator[Any]:
    numbers = work.numbers(x)
    with work.running(instance, numbers, x) as batch:
        x.clear()
        rows = [[number, 0] for number in numbers]
        for step in count():
            change = yield work.refilled(batch, rows)
            for row in rows:
                row[1] += 1
            if change:
                rows = work.changed(batch, rows, change)
            time.sleep(0.0002 if step > 3 else work.pause(batch))


async def _arefilled(work: Work, instance: int, x: Any, y: Any) -> Any:
    steps: Any = _refilled(work, instance, x, y)
    try:
        pieces = next(steps)
        while True:
            change = yield pieces
            await asyncio.sleep(0)
            pieces = steps.send(change)
    finally:
        steps.close()
