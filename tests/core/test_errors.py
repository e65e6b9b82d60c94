"""A copied error is as the original was, whatever its class does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from smtplib import SMTPDataError
from typing import Any

import pytest

from batched.errors import BatchError, copied, for_event_loop, raise_as_was
from tests.kit.optional import torch


class Rewords(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


class Slotted(ValueError):
    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Loud(OSError):
    def __init__(self, *args: Any) -> None:
        raise AssertionError("copying must not call __init__")


def decode_error() -> UnicodeDecodeError:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


@pytest.mark.thread_unsafe(reason="the error of the parameters gets a note")
@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        KeyError("a", 1),
        Rewords(3, hint="h"),
        OSError(2, "No such file", "/tmp/x", None, "/tmp/y"),
        OSError(None, None, "/tmp/x"),
        SMTPDataError(550, b"no such user"),  # it sets `args`, and never calls the `__init__` of `OSError`
        decode_error(),
        SystemExit(3),
        StopIteration(5),
        ImportError("no", name="m", path="p"),
        SyntaxError("bad", ("f", 1, 2, "text", 1, 3)),
        ExceptionGroup("two", [ValueError(1), KeyError(2)]),
        asyncio.CancelledError("x"),
        torch.cuda.OutOfMemoryError("out of memory"),
        AttributeError("no", name="n", obj=None),
        TimeoutError("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_copies_are_equal_in_all_but_identity(error: BaseException) -> None:
    """Type, arguments, message, attributes; notes are a list of the copy's own."""
    error.add_note("note")
    twin = copied(error)
    assert twin is not error
    assert (type(twin), twin.args, str(twin), repr(twin)) == (
        type(error),
        error.args,
        str(error),
        repr(error),
    )
    notes = twin.__dict__.pop("__notes__")
    assert notes == ["note"]
    assert notes is not error.__notes__
    assert vars(twin) == {key: value for key, value in vars(error).items() if key != "__notes__"}
    for name in (
        "errno",
        "filename",
        "filename2",
        "code",
        "value",
        "name",
        "path",
        "lineno",
        "start",
        "object",
    ):
        assert getattr(twin, name, None) == getattr(error, name, None)


def test_what_one_caller_adds_to_its_copy_is_in_no_other() -> None:
    """To a list, dict or set of the error, or to one of the errors of a group, which it may raise too."""
    error: Any = ValueError("two fields")
    error.fields, error.told, error.seen = ["a"], {"a": 1}, {"a"}
    group = ExceptionGroup("inner", [ExceptionGroup("innermost", [error])])
    mine: Any = copied(group).exceptions[0].exceptions[0]  # type: ignore[attr-defined]
    assert (type(mine), mine.args, vars(mine)) == (ValueError, error.args, vars(error))
    mine.fields.append("b")
    mine.told["b"] = 2
    mine.seen.add("b")
    mine.add_note("to me")
    with pytest.raises(ValueError, match="two fields"):
        raise mine
    assert vars(error) == {"fields": ["a"], "told": {"a": 1}, "seen": {"a"}}
    assert error.__traceback__ is None


def test_slots_and_chains_are_copied() -> None:
    """And `__init__` is not called again."""
    error = Slotted("why")
    error.__cause__ = KeyError("cause")
    error.__context__ = OSError("context")
    twin: Any = copied(error)
    assert (twin.reason, twin.__cause__, twin.__context__) == ("why", error.__cause__, error.__context__)
    assert twin.__suppress_context__
    assert type(copied(Loud.__new__(Loud, 1, "x"))) is Loud


def test_an_error_that_cannot_be_copied_is_the_cause_of_a_batch_error() -> None:
    """Its class is named."""

    class Final(Exception):
        def __new__(cls) -> Any:
            return super().__new__(cls)

        def __reduce__(self) -> Any:
            raise RuntimeError

        __dict__ = None  # type: ignore[assignment]

    error = Final()
    twin = copied(error)
    assert isinstance(twin, BatchError)
    assert twin.__cause__ is error
    assert "Final" in str(twin)
    assert copied(error, is_own=True) is error


def test_slots_that_hold_none_are_set_and_those_that_are_not_set_stay_so() -> None:
    """And members of `OSError` that are None stay as they are: it has another message else."""
    error = Slotted(None)  # type: ignore[arg-type]
    twin: Any = copied(error)
    assert twin.reason is None
    del error.reason
    assert not hasattr(copied(error), "reason")
    assert str(copied(OSError(2, "gone"))) == "[Errno 2] gone"


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def test_a_frozen_error_is_copied_and_raised_with_its_own_context() -> None:
    """Its class refuses every attribute."""
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise Frozen(5)  # noqa: B904
    except Frozen as error:
        twin = copied(error)
    with pytest.raises(Frozen) as caught:
        raise_as_was(twin)
    assert caught.value.code == 5
    assert isinstance(caught.value.__context__, KeyError)


class Answer(Exception):
    """An error that has what a server has answered as attributes, as clients of some APIs write it."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(f"code {body['code']}")
        self.body = body

    def __getattr__(self, name: str) -> Any:
        return self.body[name]


class Fixed(Exception):
    """An error of which the arguments are something else to its users."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        return ("fixed", self.code)


@pytest.mark.parametrize("error", [Answer({"code": 7}), Fixed(7)], ids=lambda error: type(error).__name__)
def test_attributes_of_which_a_class_makes_its_own_are_no_reason_not_to_copy(error: Any) -> None:
    """The copy is read and written past them."""
    twin = copied(error)
    assert type(twin) is type(error)
    assert twin is not error
    assert (twin.code, str(twin)) == (7, str(error))  # type: ignore[attr-defined]
    assert (vars(twin), twin.args) == (vars(error), error.args)


def test_only_what_a_task_may_raise_reaches_an_event_loop() -> None:
    """Anything else becomes the cause of a BatchError."""
    harmless = ValueError()
    assert for_event_loop(harmless) is harmless
    for error in (KeyboardInterrupt(), SystemExit(1), StopIteration(1), asyncio.CancelledError()):
        wrapped = for_event_loop(error)
        assert isinstance(wrapped, BatchError)
        assert wrapped.__cause__ is error
