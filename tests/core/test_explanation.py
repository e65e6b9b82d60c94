"""Each sentence of `explain`, from the numbers that it is made of."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from batched._core import explanation
from batched._core.explanation import explain
from batched._core.options import ArrayOptions, Options
from batched._core.stats import Padding
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
    "Items have no length that shows. If the function pads them, say how long they are: set length to a function.",  # noqa: E501  one sentence
    "Batches have 20.0 items on average, of at most 64; 10% started full.",
    "No batch is held back now: a wait for more calls would cost more than it saves.",
    "Items have waited for 2 ms on average, and one in a hundred for 2 ms or longer.",
]
APART: dict[str, Any] = {"apart_time": 0.12, "processing_time": times(1.0)}


class Example(NamedTuple):
    """A sentence, and the figures and options by which it is said."""

    says: str
    changes: dict[str, Any] = {}  # noqa: RUF012  it is not changed
    options: dict[str, Any] = {}  # noqa: RUF012
    arrays: bool = False

    def lines(self, explains: Callable[..., str] = explain) -> list[str]:
        """Return all that is said."""
        options = (ArrayOptions if self.arrays else Options)(**self.options)
        return explains(stats(**self.changes), options).splitlines()


COSTS = [
    Example("Half of the batches took at most 14 ms.", {"learned": None}),
    Example(
        "What a batch and an item cost is not known yet: more calls have to be answered.", {"learned": None}
    ),
    Example("What a batch and an item cost is not known: no item has worked.", OUTAGE),
    Example(
        "What a batch and an item cost is not learned: that needs adaptive=True, timeout_ms above 0 and "
        "max_concurrent_batches=1.",
        {"learned": None},
        {"adaptive": False},
    ),
    Example("Half of the batches took at most 14 ms.", {"learned": ONE_SIZE}),
    Example(
        "What an item adds to that is not known: too few batches had another size.",
        {"learned": ONE_SIZE, "batch_size": sizes(of_20=93, of_30=7)},
    ),
    Example(
        "What an item adds to that is not known: so far, what batches took does not tell.",
        {"learned": UNKNOWN},
    ),
    Example(
        "A batch costs 4 ms, and each item adds 0.25 ms, and 0.025 ms for each unit of the longest item's "
        "length.",
        {"learned": LENGTHS, "padding": PADDED},
        {"length": len},
    ),
    Example(
        "Items cost nearly all of that, so that to share batches saves next to nothing.",
        {"learned": replace(LEARNED, batch_ms=0.02)},
    ),
]
LENGTH = [
    Example(
        "Length takes 36% of the time of a batch, so items of like length share one where padding would take "
        "much of that.",
        {"learned": LENGTHS, "chosen": {"length": 1}},
    ),
    Example(
        "So far 1 batch has been chosen by length (padded to their longest items, batches were 25% padding).",
        {"learned": None, "chosen": {"length": 1}, "padding": PADDED},
    ),
    Example(
        "So far 1,090 batches have been chosen by length (padded to their longest items, batches were 25% "
        "padding).",
        {"chosen": {"length": 1090}, "padding": PADDED},
    ),
    Example(
        "Length takes next to no time any more, so items go in order of arrival.", {"chosen": {"length": 9}}
    ),
    Example(
        "Items have gone in order of arrival: padding took too little time for another order to pay (padded "
        "to their longest items, batches were 25% padding).",
        {"chosen": {"arrival": 100}, "padding": PADDED},
        {"length": len},
    ),
    Example(
        "Lengths only keep batches within max_batch_length: items go in order of arrival.",
        {"chosen": {"arrival": 100}},
        {"max_batch_length": 512},
    ),
    Example(
        "Lengths were looked at in 24 batches of several items, and no time has been found that another order "  # noqa: E501  one sentence
        "would save (padded to their longest items, batches were 25% padding).",
        {"padding": PADDED, "total_batches": 11},
    ),
    Example(
        "Lengths were looked at in 24 batches of several items, and hardly differed within them: so what "
        "length costs is not known.",
        {"padding": Padding(100, 100, 24)},
    ),
    Example(
        "Lengths were looked at in 1 batch of several items: too few to tell what length costs.",
        {"padding": Padding(75, 100, 1)},
    ),
    Example(
        "Lengths are hardly looked at: batches take too little time for that.",
        {"processing_time": times(*[1e-4] * 100)},
    ),
    Example("Lengths are not looked at, because of length=None.", {}, {"length": None}),
]
SIZE = [
    Example("Callers have come one at a time: there was next to nothing to share.", ALONE),
    Example("Callers have come one at a time: there was next to nothing to share.", ALONE, {"group_by": len}),
    Example(
        "For 12% of the time the function has worked on batches with room for items that waited, but had "
        "another key of group_by: with fewer keys, these would share a batch.",
        APART,
        {"group_by": len},
    ),
    Example(
        "For 12% of the time the function has worked on batches with room for items that waited, but had "
        "other columns: with equal ones, these would share a batch.",
        APART,
    ),
    Example(
        "For 12% of the time the function has worked on batches with room for items that waited, but had "
        "arrays of another layout: with fewer layouts, these would share a batch.",
        APART,
        arrays=True,
    ),
    Example(
        "Of the time of a full batch 25% does not depend on its items: a larger batch_size would share it "
        "among more.",
        LEFT,
        {"batch_size": 24},
    ),
    Example("No more than 1 item fits into memory.", {"fits_memory": 1}),
    Example("No more than 8 items fit into memory.", {"fits_memory": 8}),
    Example(
        "Batches of 1 item seem to serve best: now none has more, but for rare trials.",
        {"best_batch_size": 1},
    ),
    Example(
        "Batches of 8 items seem to serve best: now none has more, but for rare trials.",
        {"best_batch_size": 8},
    ),
    Example(
        "Most batches are full before they have 64 items, because of max_batch_length=4.",
        {"closed": ALL_FULL},
        {"max_batch_length": 4},
    ),
]
WAITS = [
    Example("A batch that is not full waits until its oldest item is 5 ms old.", {"learned": None}),
    Example("No batch is held back, because of timeout_ms=0.", {}, {"timeout_ms": 0}),
    Example("No batch is held back now.", {"closed": {"full": 10, "callers back": 90}}),
    Example(
        "Batches are held back for 1.5 ms on average, for callers that were just answered and come straight "
        "back, or for the rest of a burst.",
        {"learned": replace(LEARNED, wait_ms=1.5)},
    ),
]
LOSSES = [
    Example(
        "The cache, or an equal item in flight, has answered 3,000 of 5,000 items.",
        {"total_cached": 3000},
        {"cache": {}},
    ),
    Example(
        "The cache, or an equal item in flight, has answered 0 of 1 item.",
        {"total_accepted": 1},
        {"cache": {}},
    ),
    Example("1 batch failed and ran again in halves, to find the items that fail.", {"total_divided": 1}),
    Example("3 batches failed and ran again in halves, to find the items that fail.", {"total_divided": 3}),
    Example(
        "3 batches failed and ran again in halves, as memory was short, or to find the items that fail.",
        {"total_divided": 3, "fits_memory": 8},
    ),
    Example(
        "3 batches failed and ran again in halves, as the function raised an error.",
        {"total_divided": 3, "batch_error": "ValueError: rows differ"},
    ),
    Example(
        "3 batches failed and ran again in halves, as memory was short, or as the function raised an error.",
        {"total_divided": 3, "batch_error": "ValueError: rows differ", "fits_memory": 8},
    ),
    Example(
        "Batches have failed of which each item worked when it ran again, so the function fails for items "
        "together; the last such error: ValueError: rows differ",
        {"batch_error": "ValueError: rows differ"},
    ),
    Example(
        "Let the function take any items at once, let only items that go together share a batch (group_by), "
        "or set batch_size=1.",
        {"batch_error": "ValueError: rows differ"},
    ),
    Example(
        "No item of the last batch that failed has worked, as in an outage: until something works, batches "
        "that fail do not run again.",
        {"isolation_paused": True},
    ),
    Example("1 of 1 item failed.", {"total_failed": 1, "total_processed": 1}),
    Example("7 of 2,000 items failed.", {"total_failed": 7, "isolation_paused": True}),
    Example("1 item was late before the start of a batch.", {"total_expired": 1}),
    Example("5 items were late before the start of a batch.", {"total_expired": 7, "total_given_up": 2}),
    Example(
        "1 item was given up while waiting, as the time left until the deadline was too short.",
        {"total_expired": 1, "total_given_up": 1},
    ),
    Example(
        "2 items were given up while waiting, as the time left until the deadline was too short.",
        {"total_expired": 7, "total_given_up": 2},
    ),
    Example(
        "1 item was refused at once: by the time that batches take, too late for a deadline.",
        {"total_refused": 1},
    ),
    Example(
        "32,740 items were refused at once: by the time that batches take, too late for a deadline.",
        {"total_refused": 32740},
    ),
    Example("1 item was refused, as the queue had no room.", {"total_rejected": 1}),
    Example("6 items were refused, as the queue had no room.", {"total_rejected": 6}),
    Example("No batch has run yet, so nothing is known.", {"total_batches": 0}),
    Example("No batch has ended yet, so nothing is known.", {"total_batches": 0, "running": (1.0,)}),
]
CHANGED = [
    Example(
        "Since options were changed, 0 batches have started and ended.",
        {"configured": stats()},
    ),
    Example(
        "Since options were changed, 100 batches have started and ended: of these the next sentences are.",
        {"configured": EMPTY},
    ),
    Example(
        "Since options were changed, 1 batch has started and ended: of these the next sentences are.",
        {"configured": stats(total_batches=99)},
    ),
    Example(
        "Batches have 2.0 items on average, of at most 4; 50% started full.",
        {
            "total_batches": 110,
            "batch_size": sizes(of_2=10, of_10=50, of_30=50),
            "closed": {"full": 15, "no gain": 95},
            "configured": stats(),
        },
        {"batch_size": 4},
    ),
]
EXAMPLES = [*COSTS, *LENGTH, *SIZE, *WAITS, *LOSSES, *CHANGED]


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
    with pytest.raises((AssertionError, ValueError)):
        check(blanked["explain"])
