"""Errors of a served function, as its callers see them in another process."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from smtplib import SMTPDataError
from typing import Any

import pytest

import batched
from batched._remote.failures import RemoteTraceback, decoded_error, encoded_error
from batched._remote.values import Pickles
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.serving import served


class Plain(Exception):
    """An error as most are."""


class Own(Exception):
    """One of which the arguments are not those of `__init__`."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}: {detail}")
        self.code = code
        self.detail = detail


class Slotted(Exception):
    """One with slots."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Reduced(Exception):
    """One that says itself how it is pickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.pair = one, other

    def __reduce__(self) -> Any:
        return type(self), self.pair


class Forgetful(Exception):
    """One that loses its text on the way, as urllib3's do with their connection."""

    def __reduce__(self) -> Any:
        return type(self), ()


class Hiding(OSError):
    """One that has such an error for its argument, as those of requests do."""

    def __init__(self, *args: Any, status: int) -> None:
        super().__init__(*args)
        self.status = status


class Group(ExceptionGroup[Exception]):
    """A group of one's own."""


class Counted(ExceptionGroup[Exception]):
    """A group that takes other arguments, as in the documentation of Python."""

    code: int

    def __new__(cls, errors: list[Exception], code: int) -> Counted:  # noqa: PYI034  as it stands there
        made = super().__new__(Counted, f"code {code}", errors)
        made.code = code
        return made


class Odd(Exception):
    """One of which nothing can be had."""

    def __str__(self) -> str:
        raise SystemExit(7)

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def there_and_back(error: BaseException) -> BaseException:
    """Return `error` as it comes out of the other process."""
    codec = Pickles()
    payload, buffers = encoded_error(codec, error)
    return decoded_error(codec, codec.load(bytes(payload), [bytearray(each) for each in buffers]))


def with_attribute(error: Any, **attributes: Any) -> Any:
    """Return `error` with more attributes."""
    vars(error).update(attributes)
    return error


def changed(error: Any, **attributes: Any) -> Any:
    """Return `error` with other attributes than its arguments say."""
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    "error",
    [
        Plain("one", 2),
        Plain(),
        KeyError("key"),
        OSError(2, "No such file", "a name"),
        FileNotFoundError(2, "No such file", "a name", None, "another"),
        SMTPDataError(550, b"no such user"),
        ModuleNotFoundError("no module", name="torch", path="here"),
        NameError("no name", name="torch"),
        AttributeError("no attribute", name="cuda"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        Own(7, detail="text"),
        Slotted(3),
        Reduced(1, 2),
        changed(OSError(2, "No such file", "a name"), strerror="No such file in the archive"),
        changed(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), reason="invalid in row 7"),
        changed(SyntaxError("no operand"), lineno=3, filename="a name", text="1 +"),
        changed(ImportError("no module", name="torch"), msg="no module on this machine"),
        changed(StopIteration(5), value=6),
        changed(SystemExit(5), code=6),
        with_attribute(Plain("one"), more={"a": [1]}),
        batched.BatchError("wrong"),
        with_attribute(batched.QueueFullError("full"), retry_after_s=1.5),
        with_attribute(batched.OverloadError("late"), retry_after_s=0.25),
        with_attribute(batched.OverloadError("late"), retry_after_s=None),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError("gone"),
        StopIteration(5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_type_message_arguments_and_attributes_cross(error: Any) -> None:
    """Of classes of all kinds."""
    found: Any = there_and_back(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    assert vars(found) == vars(error)
    for name in (
        "code",
        "detail",
        "pair",
        "errno",
        "strerror",
        "reason",
        "lineno",
        "text",
        "msg",
        "filename",
        "filename2",
        "value",
        "object",
        "end",
        "name",
        "path",
    ):
        assert getattr(found, name, "none") == getattr(error, name, "none")


def test_an_error_of_which_the_arguments_lose_their_text_keeps_its_own() -> None:
    error = Hiding(Forgetful("no route"), status=7)
    found: Any = there_and_back(error)
    assert (type(found), str(found), found.status) == (Hiding, "no route", 7)


def test_the_object_that_lacks_an_attribute_does_not_cross() -> None:
    """It may be a model."""
    found: Any = there_and_back(AttributeError("no attribute", name="cuda", obj=bytearray(1_000_000)))
    assert (found.name, found.obj) == ("cuda", None)


def test_notes_causes_and_contexts_cross() -> None:
    """As far as a traceback would show them."""
    try:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise OSError("second")  # noqa: B904
        except OSError as second:
            raise Own(3, detail="third") from second
    except Own as third:
        error = third
    error.add_note("a note")
    found = there_and_back(error)
    assert found.__notes__ == ["a note"]
    assert isinstance(found.__cause__, OSError)
    assert isinstance(found.__cause__.__context__, KeyError)
    assert isinstance(found.__cause__.__context__.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(found))
    for text in ("first", "second", "code 3: third", "a note", "raise OSError", "test_failures.py"):
        assert text in shown
    hidden = Plain("seen")
    hidden.__context__ = KeyError("not seen")
    hidden.__suppress_context__ = True
    assert there_and_back(hidden).__context__ is None


def test_groups_cross_with_each_of_their_errors() -> None:
    """Also with those that pickle cannot make again."""
    group = Group("several", [Own(1, detail="x"), ExceptionGroup("inner", [Plain("y"), Slotted(2)])])
    found: Any = there_and_back(group)
    assert (type(found), found.message) == (Group, "several")
    own, inner = found.exceptions
    assert (own.code, own.detail, str(own)) == (1, "x", "code 1: x")
    assert [str(each) for each in inner.exceptions] == ["y", "2"]
    with pytest.raises(ExceptionGroup) as caught:
        raise found
    assert caught.value.split(Own)[0] is not None
    found = there_and_back(Counted([Plain("y")], 3))
    assert (type(found), found.message, found.code) == (Counted, "code 3", 3)


def test_an_error_of_which_nothing_can_be_had_still_arrives() -> None:
    """Its methods end no server."""
    assert "its `__str__` raises" in str(there_and_back(Odd()))
    for error in (Plain(lambda: 1), with_attribute(Plain("text"), lock=iter([1])), Plain("\ud800")):
        found = there_and_back(error)
        assert type(found) is Plain or isinstance(found, batched.BatchError)
    chained = Plain("0")
    last: BaseException = chained
    for at in range(1, 100):
        last.__cause__ = Plain(str(at))
        last = last.__cause__
    last.__cause__ = chained
    assert str(there_and_back(chained)) == "0"


@contextmanager
def module_with_an_error() -> Iterator[Any]:
    """Provide a class of errors of a module that is gone afterwards."""
    module: Any = types.ModuleType("gone_module")
    module.Gone = type("Gone", (ValueError,), {"__module__": "gone_module"})
    sys.modules["gone_module"] = module
    yield module.Gone
    del sys.modules["gone_module"]


def test_a_type_that_the_client_has_not_imported_arrives_as_a_batch_error() -> None:
    """With its name and message; nothing is imported for it."""
    codec = Pickles()
    with module_with_an_error() as gone:
        payload, _ = encoded_error(codec, gone("why"))
        assert isinstance(there_and_back(gone("why")), ValueError)
    found = decoded_error(codec, codec.load(bytes(payload), []))
    assert type(found) is batched.BatchError
    assert str(found) == "gone_module.Gone in the server: why"
    assert "gone_module" not in sys.modules


# -- through a server ------------------------------------------------------------------------------------

FATAL: list[Callable[[], BaseException]] = [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration]


@pytest.mark.parametrize("make", FATAL)
def test_what_would_end_a_loop_or_a_process_ends_neither(make: Callable[[], BaseException]) -> None:
    """A thread gets the error itself, a task a BatchError from it; and both sides go on."""

    def fatal(items: list[Any]) -> list[Any]:
        if 0 in items:
            raise make()
        return items

    with served(batched.dynamically(fatal, timeout_ms=0)) as server:
        fn = server.connect().fatal

        async def awaited() -> Any:
            with pytest.raises(batched.BatchError) as caught:
                await fn.acall(0)
            assert type(caught.value.__cause__) is make
            return await fn.acall(1)

        assert asyncio.run(awaited()) == 1
        assert type(fn.submit(0).exception(PATIENCE_S)) is make
        with pytest.raises(make):  # type: ignore[arg-type]
            fn(0)
        assert fn(1) == 1
        gc.collect()  # of the loop that has ended, with its connection, for which the server waits


def test_errors_in_the_places_of_results() -> None:
    """A result that is an error fails its item; lists and maps may keep it."""

    @batched.dynamically(timeout_ms=0)
    def fn(items: list[int]) -> list[Any]:
        return [Own(item, detail="odd") if item % 2 else item for item in items]

    with served(fn) as server:
        call = server.connect().fn
        kept = call.options(return_exceptions=True)
        assert [getattr(each, "code", each) for each in kept([1, 2, 3])] == [1, 2, 3]
        assert [type(each) for each in kept.map(range(4))] == [int, Own, int, Own]
        assert type(kept(1)) is Own
        with pytest.raises(Own) as caught:
            call([2, 3, 5])
        assert caught.value.code == 3
        answers = []
        with pytest.raises(Own) as caught:
            answers.extend(call.map([2, 4, 7, 8]))
        assert caught.value.__notes__ == ["item 3 of a map of fn"]


def test_refusals_say_when_to_come_back() -> None:
    """A full queue, and a call that cannot be on time, are refused in the server."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, name="fn", batch_size=1, timeout_ms=0, max_queue_size=1)
    with served(fn) as server:
        call = server.connect().fn
        gate.open()
        for each in range(20):
            call(each)
        gate.close()
        held = [call.submit(0)]
        gate.wait_for_batch()
        held.append(call.submit(1))
        with pytest.raises(batched.QueueFullError) as full:
            call(2)
        assert isinstance(full.value.retry_after_s, float)
        with pytest.raises(batched.QueueFullError):
            call.submit(3).result(PATIENCE_S)
        gate.open()
        assert [each.result(PATIENCE_S) for each in held] == [0, 1]


def test_a_wrong_call_is_refused_as_in_one_process() -> None:
    """With the words of the function; `submit` has it in the future."""

    @batched.dynamically(timeout_ms=0)
    def fn(items: list[int], *, scale: int = 1) -> list[int]:
        return items

    with served(fn) as server:
        call = server.connect().fn
        for wrong in (
            lambda: call(1, 2),
            lambda: call(scale=2),
            lambda: call.submit(1, 2, 3).result(PATIENCE_S),
        ):
            with pytest.raises(TypeError, match="fn"):
                wrong()
        with pytest.raises(TypeError, match="does not stream"):
            next(call.stream(1))


def test_a_piece_that_cannot_be_sent_ends_its_stream_with_the_reason() -> None:
    """No task takes it for its own cancellation, and the function is told that the caller has left."""
    ended = threading.Event()

    @batched.dynamically(timeout_ms=0)
    def fn(items: list[int]) -> Iterator[list[Any]]:
        try:
            yield items
            while True:
                yield [lambda: 1 for _ in items]
        finally:
            ended.set()

    with served(fn) as server:
        call = server.connect().fn

        async def read() -> None:
            pieces = call.astream(1)
            assert await anext(pieces) == 1
            with pytest.raises(TypeError, match="cannot be sent to another process"):
                await asyncio.wait_for(anext(pieces), PATIENCE_S)

        asyncio.run(read())
        assert ended.wait(PATIENCE_S)
        ended.clear()
        pieces = call.stream(2)
        assert next(pieces) == 2
        with pytest.raises(TypeError, match="cannot be sent to another process"):
            next(pieces)
        assert ended.wait(PATIENCE_S)
    fn.shutdown()


@pytest.mark.parametrize("last", [batched.DONE, ValueError("last")])
def test_an_item_that_ends_before_the_others_is_answered_once(
    last: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker tells of its call as it ends, and once more at the end of the function."""

    @batched.dynamically(timeout_ms=0)
    def fn(items: list[int]) -> Iterator[list[Any]]:
        yield items
        yield [last for _ in items]

    with served(fn) as server:
        call = server.connect().fn
        for _ in range(3):
            answer = call.options(return_exceptions=True).submit(1).result(PATIENCE_S)
            assert answer == [1] if last is batched.DONE else repr(answer) == repr(last)
    fn.shutdown()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
