"""The options of single calls, without a decorated function: what they make of a call."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.call import Call
from batched._core.options import NO_OPTIONS, CallOptions
from batched._parts.divided import divide
from tests.kit.batcher_rules import echo
from tests.kit.calls import listed

ARRIVED = 10.0


def applied(options: CallOptions) -> tuple[float | None, bool | None, bool]:
    """Return the deadline, the priority and the ways of errors of a call with options."""
    options.apply_to(call := listed(3, ARRIVED))
    return call.deadline, call.bulk, call.keep_errors


def test_a_plain_call_is_left_as_it_is() -> None:
    assert CallOptions() == NO_OPTIONS
    assert applied(NO_OPTIONS) == (None, None, False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deadline_ms": 500.0}, (ARRIVED + 0.5, None, False)),
        ({"deadline_ms": 500}, (ARRIVED + 0.5, None, False)),
        ({"deadline_ms": None}, (None, None, False)),
        ({"deadline_ms": "default"}, (None, None, False)),
        ({"priority": "bulk"}, (None, True, False)),
        ({"priority": "interactive"}, (None, False, False)),
        ({"return_exceptions": True}, (None, None, True)),
    ],
)
def test_each_option_changes_its_own_part_of_a_call(options: dict[str, Any], expected: Any) -> None:
    assert applied(CallOptions(**options)) == expected


def test_the_deadline_and_the_priority_of_a_call_stay_where_nothing_is_said_of_them() -> None:
    call = Call().begin(echo, [1], 1, True, ARRIVED, 12.0, True)
    NO_OPTIONS.apply_to(call)
    assert (call.deadline, call.bulk) == (12.0, True)


def test_parts_of_a_call_have_its_options() -> None:
    divided = divide(listed(4, ARRIVED), [[0, 2], [1, 3]], lambda items, at: [items[each] for each in at])
    CallOptions(deadline_ms=500.0, priority="bulk", return_exceptions=True).apply_to(divided)
    assert len(divided.parts) == 2
    for call in (divided, *divided.parts):
        assert (call.deadline, call.bulk, call.keep_errors) == (ARRIVED + 0.5, True, True)


def test_a_call_is_read_with_its_options() -> None:
    call = CallOptions(priority="bulk").read(listed, 3, ARRIVED)
    assert (call.size, call.arrived, call.bulk) == (3, ARRIVED, True)


@pytest.mark.parametrize(
    ("said", "default", "deadline_ms"),
    [("default", 9.0, 9.0), ("default", None, "default"), (None, 9.0, None), (5.0, 9.0, 5.0)],
)
def test_the_default_is_the_deadline_only_of_calls_that_leave_it_to_it(
    said: Any, default: float | None, deadline_ms: Any
) -> None:
    """All else stays."""
    options = CallOptions(deadline_ms=said, priority="bulk", return_exceptions=True).with_default(default)
    assert options == CallOptions(deadline_ms=deadline_ms, priority="bulk", return_exceptions=True)


def test_a_cache_is_compared_by_what_it_is_not_by_what_is_in_it() -> None:
    """It may be large, and two requests that know nothing yet are two; without one, options are values."""

    class Unequal(dict[str, str]):
        __hash__ = object.__hash__  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("its content was compared")

    mine, other = Unequal(), Unequal()
    options = CallOptions(request_cache=mine, priority="bulk")
    assert options == CallOptions(request_cache=mine, priority="bulk")
    assert hash(options) == hash(CallOptions(request_cache=mine, priority="bulk"))
    assert options != CallOptions(request_cache=other, priority="bulk")
    assert options != CallOptions(priority="bulk")
    assert options != CallOptions(request_cache=mine)
    assert options.with_default(5.0).request_cache is mine


@pytest.mark.parametrize("default", [None, 9.0])
def test_options_that_stay_the_same_are_the_same_object(default: float | None) -> None:
    """A view without options of its own is known by it."""
    assert NO_OPTIONS.with_default(None) is NO_OPTIONS
    options = CallOptions(deadline_ms=None)
    assert options.with_default(default) is options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"deadline_ms": 0}, ValueError, "deadline_ms must be"),
        ({"deadline_ms": "soon"}, ValueError, "deadline_ms must be"),
        ({"priority": "high"}, ValueError, "priority must be"),
        ({"return_exceptions": 1}, TypeError, "return_exceptions must be"),
        ({"request_cache": dict}, TypeError, r"request_cache must be an object, .* write dict\(...\)"),
        (
            {"request_cache": "x"},
            TypeError,
            "request_cache must be a mapping such as a dict, got 'x' of type str",
        ),
    ],
)
def test_a_senseless_value_is_refused(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        CallOptions(**options)
