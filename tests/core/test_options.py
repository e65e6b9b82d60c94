"""Options are checked at the door, with the value in the message."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import batched


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": -3}, ValueError, "batch_size must be at least 1, got -3"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an int, got 2.5"),
        ({"batch_size": True}, TypeError, "batch_size must be an int, got True"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an int, got '8'"),
        ({"timeout_ms": -1}, ValueError, "timeout_ms must be at least 0, got -1"),
        ({"timeout_ms": float("nan")}, ValueError, "timeout_ms must be at least 0, got nan"),
        ({"timeout_ms": float("inf")}, ValueError, r"timeout_ms must be at most 604800000 .*, got inf"),
        ({"timeout_ms": 604_800_001}, ValueError, r"at most 604800000 \(a week\), got 604800001$"),
        (
            {"default_deadline_ms": float("inf")},
            ValueError,
            r"at most 604800000 \(a week\), got inf \(None means no deadline\)",
        ),
        ({"default_deadline_ms": 0}, ValueError, "must be more than 0, got 0 .None means no deadline"),
        ({"default_deadline_ms": -1}, ValueError, "default_deadline_ms must be more than 0, got -1"),
        ({"timeout_ms": "5"}, ValueError, r"timeout_ms must be .* milliseconds, or \"auto\", got '5'"),
        ({"timeout_ms": None}, TypeError, 'timeout_ms must be a number of milliseconds, or "auto", got None'),
        ({"small_batch_threshold": -1}, ValueError, "small_batch_threshold must be at least 0, got -1"),
        ({"batch_size": 10**400}, ValueError, r"batch_size must be at most \d+, got an integer of 1329 bits"),
        ({"max_queue_size": sys.maxsize + 1}, ValueError, "max_queue_size must be at most"),
        ({"batch_sizes": 4}, TypeError, r"batch_sizes must be a tuple of ints, .* got 4"),
        ({"batch_sizes": "124"}, TypeError, r"batch_sizes must be a tuple of ints, .* got '124'"),
        ({"batch_sizes": {1, 2}}, TypeError, r"batch_sizes must be a tuple of ints, .* got \{1, 2\}"),
        ({"batch_sizes": ()}, ValueError, "batch_sizes must not be empty"),
        ({"batch_sizes": (1, 2.5)}, TypeError, "each of batch_sizes must be an int, got 2.5"),
        ({"batch_sizes": (0, 1)}, ValueError, "each of batch_sizes must be at least 1, got 0"),
        ({"batch_sizes": (1, 4, 2)}, ValueError, r"batch_sizes must be in ascending order, .* \(1, 4, 2\)"),
        ({"batch_sizes": (1, 1)}, ValueError, "batch_sizes must be in ascending order"),
        (
            {"batch_sizes": (1, 2), "batch_size": 64},
            ValueError,
            r"batch_size=64 is not the largest of batch_sizes=\(1, 2\): leave batch_size out",
        ),
        ({"max_pieces": 0}, ValueError, "max_pieces must be at least 1, got 0"),
        ({"max_pieces": None}, TypeError, "max_pieces must be an int, got None"),
        ({"name": 3}, TypeError, "name must be a string, got 3"),
        ({"on_batch": 3}, TypeError, "on_batch must be a function of a batched.BatchRecord, got 3"),
        ({"on_batch": lambda: 3}, TypeError, "on_batch must be a function of a batched.BatchRecord, got <fu"),
        ({"on_batch": divmod}, TypeError, "on_batch must be a function of a batched.BatchRecord, got <bui"),
        ({"prepare": 3}, TypeError, "prepare must be a function or the name of a method, got 3"),
        ({"finish": "not a name"}, ValueError, "finish must be a function or the name of a method, got 'not"),
        ({"prepare": classmethod(len)}, TypeError, "prepare must be a function .*: name it instead"),
        (
            {"finish": len, "max_concurrent_batches": 4},
            ValueError,
            "finish cannot be used with max_concurrent_batches=4: .*; for several devices, use workers",
        ),
        (
            {"max_batch_size": 3},
            TypeError,
            r"no option 'max_batch_size' \(did you mean 'batch_size'\?\); it has batch_size, ",
        ),
        ({"batch_timeout": 0.01}, TypeError, r"no option 'batch_timeout' \(did you mean 'timeout_ms'\?\)"),
        ({"batch_size_fn": len}, TypeError, r"no option 'batch_size_fn' \(did you mean 'length'\?\)"),
        ({"max_wait_ms": 9}, TypeError, r"no option 'max_wait_ms' \(did you mean 'timeout_ms'\?\)"),
        ({"postprocess": len}, TypeError, r"no option 'postprocess' \(did you mean 'finish'\?\)"),
        ({"deadline": 9}, TypeError, r"no option 'deadline' \(did you mean 'default_deadline_ms'\?\)"),
        ({"max_latency_ms": 9}, TypeError, r"'max_latency_ms' \(did you mean 'default_deadline_ms'\?\)"),
        ({"priority_strategy": 3}, TypeError, "no option 'priority_strategy'; it has batch_size, "),
    ],
)
def test_a_senseless_option_is_refused_at_decoration(options: Any, error: Any, message: str) -> None:
    """In every form of the decorator, before any function is called."""
    with pytest.raises(error, match=message):
        batched.dynamically(**options)
    with pytest.raises(error, match=message):
        batched.dynamically(len, **options)
