"""Each sentence of `explain`, from the numbers that it is made of."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from batched import Workers
from batched._core import explanation
from batched._core.explanation import explain
from batched._core.options import ArrayOptions, Options, StreamOptions
from tests.kit.figures import (
    ALL_FULL,
    ALONE,
    EMPTY,
    LEARNED,
    LEFT,
    LENGTHS,
    ONE_SIZE,
    OUTAGE,
    PADDED,
    UNKNOWN,
    sizes,
    stats,
    times,
)

USUAL = [
    "A batch costs 4 ms, and each item adds 0.5 ms.",
    "Not all items have a length that can be seen. If the function pads them, set length to a function that returns an item's length.",  # noqa: E501  one sentence
    "Batches have 20.0 items on average, out of a possible 64; 0% started full.",
    "Batches do not wait for more calls now: that would cost more than it saves.",
    "Items have waited 2 ms on average, and 1% of them 2 ms or longer.",
]
APART: dict[str, Any] = {"apart_time": 0.12, "processing_time": times(1.0)}


class Example(NamedTuple):
    """A sentence, and the figures and options by which it is said."""

    says: str
    changes: dict[str, Any] = {}  # noqa: RUF012  it is not changed
    options: dict[str, Any] = {}  # noqa: RUF012
    arrays: bool = False
    streams: bool = False

    def lines(self, explains: Callable[..., str] = explain) -> list[str]:
        """Return all that is said."""
        kind = ArrayOptions if self.arrays else StreamOptions if self.streams else Options
        return explains(stats(**self.changes), kind(**self.options)).splitlines()


COSTS = [
    Example("The median batch took 14 ms.", {"learned": None}),
    Example(
        "The cost of a batch and of an item is not known yet: too few calls have been answered.",
        {"learned": None},
    ),
    Example("The cost of a batch and of an item is not known: no item has succeeded.", OUTAGE),
    Example(
        "The cost of a batch and of an item is not learned: that needs adaptive=True and timeout_ms above 0.",
        {"learned": None},
        {"adaptive": False},
    ),
    Example("The median batch took 14 ms.", {"learned": ONE_SIZE}),
    Example(
        "The cost of an item is not known: too few batches differed in size.",
        {"learned": ONE_SIZE, "batch_size": sizes(of_20=93, of_30=7)},
    ),
    Example(
        "The cost of an item is not known: batch times have not shown it so far.",
        {"learned": UNKNOWN},
    ),
    Example(
        "A batch costs 4 ms, and each item adds 0.25 ms plus 0.025 ms for each unit of the longest item's "
        "length.",
        {"learned": LENGTHS, "padding": PADDED},
        {"length": len},
    ),
    Example("A batch costs 4 ms, and each item adds 0.5 ms, copies included.", {"total_copies": 200}),
    Example(
        "Nearly all of that is the cost of the items, so batching saves almost nothing.",
        {"learned": replace(LEARNED, batch_ms=0.02)},
    ),
]
STAGES = [
    Example(
        "The stages of a batch take prepare 1 ms, function 12 ms, finish 0.5 ms on average, so batches "
        "follow each other as fast as function allows.",
        {"stages": {"prepare": times(0.001), "function": times(0.012), "finish": times(0.0005)}},
        {"prepare": list, "finish": list},
    ),
    Example(
        "The other stages take so little time that overlapping saves next to nothing.",
        {"stages": {"prepare": times(0.001), "function": times(0.1)}},
        {"prepare": list},
    ),
    Example(
        "The function waits for prepare: a faster one, or one that does less, would help.",
        {"stages": {"prepare": times(0.02), "function": times(0.01)}},
        {"prepare": list},
    ),
    Example(
        "The stages of a batch take prepare 1 ms, function 3 ms on average, one after the other in the "
        "worker that has it.",
        {"stages": {"prepare": times(0.001), "function": times(0.003)}},
        {"workers": Workers(2)},
    ),
    Example(
        "A worker is in the function for 75% of that: another worker on the same device can use the rest.",
        {"stages": {"prepare": times(0.001), "function": times(0.003)}},
        {"workers": Workers(2)},
    ),
]
LENGTH = [
    Example(
        "Length accounts for 36% of the time of a batch, so items of similar length share a batch where "
        "padding would take much of it.",
        {"learned": LENGTHS, "chosen": {"length": 1}},
    ),
    Example(
        "So far, 1 batch has been chosen by length (padded to their longest item, batches were 25% padding).",
        {"learned": None, "chosen": {"length": 1}, "padding": PADDED},
    ),
    Example(
        "So far, 1,090 batches have been chosen by length (padded to their longest item, batches were 25% "
        "padding).",
        {"chosen": {"length": 1090}, "padding": PADDED},
    ),
    Example(
        "Length no longer takes noticeable time, so items run in order of arrival.", {"chosen": {"length": 9}}
    ),
    Example(
        "Items have run in order of arrival: padding took too little time for another order to pay off "
        "(padded to their longest item, batches were 25% padding).",
        {"chosen": {"arrival": 100}, "padding": PADDED},
        {"length": len},
    ),
    Example(
        "Lengths only keep batches within max_batch_length; items run in order of arrival.",
        {"chosen": {"arrival": 100}},
        {"max_batch_length": 512},
    ),
    Example(
        "Lengths were measured in 24 batches of several items: no sign that another order would save time "
        "(padded to their longest item, batches were 25% padding).",
        {"padding": PADDED, "total_batches": 11},
    ),
    Example("Lengths are ignored, because length=None.", {}, {"length": None}),
]
STEPS: dict[str, Any] = {
    "closed": {"full": 1, "step": 99},
    "occupancy": 0.7,
    "batch_size": sizes(of_14=100),
    "processing_time": times(*[0.01] * 100),
}
REFILLED = {"continuous": True}
SIZE = [
    Example("Calls have come one at a time, so there was almost nothing to batch.", ALONE),
    Example("Calls have come one at a time, so there was almost nothing to batch.", ALONE, {"group_by": len}),
    Example(
        "For 12% of its running time, the function ran batches with room for queued items, but those had "
        "another group_by key; with fewer keys, they would share a batch.",
        APART,
        {"group_by": len},
    ),
    Example(
        "For 12% of its running time, the function ran batches with room for queued items, but those had "
        "other columns; with equal columns, they would share a batch.",
        APART,
    ),
    Example(
        "For 12% of its running time, the function ran batches with room for queued items, but those had "
        "another array layout; with fewer layouts, they would share a batch.",
        APART,
        arrays=True,
    ),
    Example(
        "25% of a full batch's time is a fixed cost: a larger batch_size would spread it over more items.",
        LEFT,
        {"batch_size": 24},
    ),
    Example(
        "33% of what the function was given were copies, to fill batches up to one of batch_sizes: sizes "
        "nearer to the number of items that come would save their time.",
        {"total_copies": 1000},
    ),
    Example("The median step took 10 ms.", STEPS, REFILLED),
    Example("Steps had 14.0 items on average, out of a possible 64.", STEPS, REFILLED),
    Example("In steps while calls waited, 70% of the places were taken.", STEPS, REFILLED),
    Example(
        "Others were empty: joining takes time, so it is better that several items join together.",
        STEPS,
        REFILLED,
    ),
    Example(
        "Others were empty: no more items may join at one step.", STEPS, {**REFILLED, "max_joining_length": 2}
    ),
    Example(
        "Others were empty, because of max_batch_length=100.",
        STEPS,
        {**REFILLED, "max_batch_length": 100},
    ),
    Example(
        "Others were empty: no item joins while another function waits for the worker.",
        STEPS,
        {**REFILLED, "workers": Workers(1)},
    ),
    Example(
        "Batches have at most 8 items, because larger ones ran out of memory.",
        {**STEPS, "fits_memory": 8},
        REFILLED,
    ),
    Example(
        "Others were empty: only items with equal keys share a batch, and keys take turns.",
        STEPS,
        {**REFILLED, "group_by": len},
    ),
    Example("Batches have at most 1 item, because larger ones ran out of memory.", {"fits_memory": 1}),
    Example("Batches have at most 8 items, because larger ones ran out of memory.", {"fits_memory": 8}),
    Example(
        "Batches of 1 item seem to work best, so larger ones are only tried now and then.",
        {"best_batch_size": 1},
    ),
    Example(
        "Batches of 8 items seem to work best, so larger ones are only tried now and then.",
        {"best_batch_size": 8},
    ),
    Example(
        "Most batches fill up before they reach 64 items, because of max_batch_length=4.",
        {"closed": ALL_FULL},
        {"max_batch_length": 4},
    ),
]
WAITS = [
    Example("An incomplete batch waits until its oldest item is 5 ms old.", {"learned": None}),
    Example("Batches never wait for more calls, because timeout_ms=0.", {}, {"timeout_ms": 0}),
    Example("Batches do not wait for more calls now.", {"closed": {"full": 10, "callers back": 90}}),
    Example(
        "Batches wait 1.5 ms for more calls on average: for callers that were just answered and call again "
        "at once, or for the rest of a burst.",
        {"learned": replace(LEARNED, wait_ms=1.5)},
    ),
    Example(
        "Batches wait 1.5 ms for more calls on average: for callers that were just answered and call again "
        "at once, for the rest of a burst, or so that batches start at even intervals.",
        {"learned": replace(LEARNED, wait_ms=1.5)},
        {"max_concurrent_batches": 2},
    ),
]
LOSSES = [
    Example(
        "The cache or an equal item in flight has answered 3,000 of 5,000 items.",
        {"total_cached": 3000},
        {"cache": {}},
    ),
    Example(
        "The cache or an equal item in flight has answered 0 of 1 item.",
        {"total_accepted": 1},
        {"cache": {}},
    ),
    Example("1 batch failed and was retried in halves to find the items that fail.", {"total_divided": 1}),
    Example("3 batches failed and were retried in halves to find the items that fail.", {"total_divided": 3}),
    Example(
        "3 batches failed and were retried in halves because memory ran out, or to find the items that fail.",
        {"total_divided": 3, "fits_memory": 8},
    ),
    Example(
        "3 batches failed and were retried in halves because the function raised an error.",
        {"total_divided": 3, "batch_error": "ValueError: rows differ"},
    ),
    Example(
        "3 batches failed and were retried in halves because memory ran out, or because the function raised "
        "an error.",
        {"total_divided": 3, "batch_error": "ValueError: rows differ", "fits_memory": 8},
    ),
    Example(
        "Some batches failed although each of their items succeeded when retried, so the function fails only "
        "on several items together; the last such error: ValueError: rows differ",
        {"batch_error": "ValueError: rows differ"},
    ),
    Example(
        "Make the function accept any items together, let only compatible items share a batch (group_by), "
        "or set batch_size=1.",
        {"batch_error": "ValueError: rows differ"},
    ),
    Example(
        "No item of the last failed batch succeeded, as in an outage: until something succeeds, failed "
        "batches are not retried.",
        {"isolation_paused": True},
    ),
    Example("1 of 1 item failed.", {"total_failed": 1, "total_processed": 1}),
    Example("7 of 2,000 items failed.", {"total_failed": 7, "isolation_paused": True}),
    Example("1 item missed the deadline before a batch started.", {"total_expired": 1}),
    Example("5 items missed the deadline before a batch started.", {"total_expired": 7, "total_given_up": 2}),
    Example(
        "1 item was dropped while waiting, because too little time was left before the deadline.",
        {"total_expired": 1, "total_given_up": 1},
    ),
    Example(
        "2 items were dropped while waiting, because too little time was left before the deadline.",
        {"total_expired": 7, "total_given_up": 2},
    ),
    Example(
        "1 item was still running when the deadline passed, so the results reached no caller.",
        {"total_late": 1},
    ),
    Example(
        "20 items were still running when the deadline passed, so the results reached no caller: batches "
        "take 14 ms on average, and 1% of them 14 ms or longer; a longer deadline_ms, or shorter batches, "
        "would help.",
        {"total_late": 20},
    ),
    Example(
        "1 item was still running when the deadline passed, and got no more pieces.",
        {"total_late": 1},
        streams=True,
    ),
    Example(
        "20 items were still running when the deadline passed, and got no more pieces: a longer "
        "deadline_ms, or fewer steps, would help.",
        {"total_late": 20},
        {"continuous": True},
        streams=True,
    ),
    Example(
        "1 item was refused on arrival, because the deadline could not have been met.",
        {"total_refused": 1},
    ),
    Example(
        "32,740 items were refused on arrival, because the deadline could not have been met.",
        {"total_refused": 32740},
    ),
    Example("1 item was rejected, because the queue had no room.", {"total_rejected": 1}),
    Example("6 items were rejected, because the queue had no room.", {"total_rejected": 6}),
    Example("No batch has run yet, so there is nothing to report.", {"total_batches": 0}),
    Example(
        "No batch has finished yet, so there is nothing to report.", {"total_batches": 0, "running": (1.0,)}
    ),
]
CHANGED = [
    Example(
        "Since options were last changed, 0 batches have finished.",
        {"configured": stats()},
    ),
    Example(
        "Since options were last changed, 100 batches have finished; the following describes only those.",
        {"configured": EMPTY},
    ),
    Example(
        "Since options were last changed, 1 batch has finished; the following describes only those.",
        {"configured": stats(total_batches=99)},
    ),
    Example(
        "Batches have 3.0 items on average, out of a possible 4; 50% started full.",
        {
            "total_batches": 110,
            "batch_size": sizes(of_2=5, of_4=5, of_10=50, of_30=50),
            "closed": {"full": 15, "no gain": 95},
            "configured": stats(),
        },
        {"batch_size": 4},
    ),
    Example(
        "Batches have 20.0 items on average, as some began before batch_size was 4.",
        {"total_batches": 110, "batch_size": sizes(of_10=55, of_30=55), "configured": stats()},
        {"batch_size": 4},
    ),
]
EXAMPLES = [*COSTS, *STAGES, *LENGTH, *SIZE, *WAITS, *LOSSES, *CHANGED]


def test_what_it_says_of_a_usual_function() -> None:
    """One sentence a line."""
    assert explain(stats(), Options()).splitlines() == USUAL


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.says[:30])
def test_each_sentence(example: Example) -> None:
    """It is there, once and as it stands, where its numbers say so, and else not."""
    assert example.lines().count(example.says) == 1
    assert example.says not in USUAL


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings of the functions of a module, but not what documents them."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        documents = function.body[0]
        for part in function.body:
            if part is documents and isinstance(part, ast.Expr):
                continue
            for node in ast.walk(part):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node


def check(explains: Callable[..., str]) -> None:
    """Check all that is said by a version of `explain`."""
    assert explains(stats(), Options()).splitlines() == USUAL
    assert all(example.says in example.lines(explains) for example in EXAMPLES)


TREE = ast.parse(inspect.getsource(explanation))


@pytest.mark.parametrize(
    "string", [*strings(TREE)], ids=lambda string: f"{string.lineno}:{string.value[:30]}"
)
def test_no_part_of_a_sentence_is_without_an_example(string: ast.Constant) -> None:
    """With other words in its place, some example is not said any more."""
    said, string.value = string.value, "~"
    try:
        code = compile(TREE, "<blanked>", "exec")
    finally:
        string.value = said
    blanked: dict[str, Any] = {"__name__": explanation.__name__}
    exec(code, blanked)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check(blanked["explain"])
