"""Errors of items together: how the stats name them, and what the log says."""

from __future__ import annotations

import logging

import pytest

from batched._core.counters import Counters
from batched._core.effects import let_go
from batched._features.batch_fault import BatchFault


class Unspeakable(ValueError):
    """An error without words."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("rows differ"), "ValueError: rows differ"),
        (KeyError("a"), "KeyError: 'a'"),
        (RuntimeError("\n  first line\nsecond line"), "RuntimeError: first line"),
        (RuntimeError(), "RuntimeError"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("long" * 1000), "ValueError: " + "long" * 50),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_stats_name_its_type_and_the_first_line(error: Exception, words: str) -> None:
    """Whatever its message is like."""
    counters = Counters()
    fault = BatchFault("f", error, counters)
    assert counters.batch_error is None
    let_go([object(), fault.log])
    assert counters.batch_error == words


def test_the_log_has_a_line_for_each_type(caplog: pytest.LogCaptureFixture) -> None:
    """Of one batcher: another has its own."""
    with caplog.at_level(logging.WARNING, "batched"):
        for name in ("f", "g"):
            counters = Counters()
            for error in (KeyError(1), KeyError(2), IndexError()):
                let_go([BatchFault(name, error, counters).log])
    said = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert said == [
        "f: a batch raised KeyError",
        "f: a batch raised IndexError",
        "g: a batch raised KeyError",
        "g: a batch raised IndexError",
    ]
