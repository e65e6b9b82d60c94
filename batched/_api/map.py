"""`map`, and the rules that it shares with `amap`: many items, lazily, in order, in bounded memory.

Each element of the source is one item, with an answer or an error of its own at its own place. Elements are
queued ahead of the consumer, as calls of one or several elements.
"""

from __future__ import annotations

import contextlib
import reprlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator
from functools import wraps
from itertools import islice
from operator import length_hint
from typing import Any, ClassVar, Self, TypeVar, cast

from batched._api.binding import Driver, Shared
from batched._api.map_types import Answers
from batched._clock import monotonic
from batched._core.call import Call, MapFlow, Row
from batched._core.options import told_of_options
from batched._drivers.thread import ThreadDriver
from batched.errors import ClosedError, copied, for_iterator, is_error, raise_as_was, without_own_frames

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


class ReadAhead(ABC):
    """The calls that a map has queued ahead of its consumer, oldest first."""

    def __init__(self, function: Any, shared: Shared[Any], driver: Driver, *, with_items: bool) -> None:
        self.calls: deque[Call] = deque()
        self.queued: deque[Any] | None = deque() if with_items else None
        """The elements of the calls, if each answer comes with its item."""
        self.ended = False
        self.name: str = driver.name
        self._function = function
        self._collator = shared.collator
        self._options = shared.effective
        self._driver = driver
        self._errors: list[BaseException] = []
        self._flow = MapFlow()
        self._items = 0
        self._passed = 0  # elements of which the consumer has the answers

    @abstractmethod
    def _post(self, call: Call) -> None:
        """Queue `call`, unless the cache has answered all of it."""

    def room(self) -> int:
        """Return how many elements may be read now, to be queued as one call."""
        if self.ended:
            return 0
        options = self._driver.options
        size = self._driver.collator.chunk_size or options.batch_size
        if isinstance(self._options.deadline_ms, float):
            size = 1  # the deadline holds for each item
        if options.max_queue_size is not None:
            size = min(size, max(options.max_queue_size // 2, 1))  # as many as may wait (`Admission`)
        # One batch in each worker, one that is next, and one of which the consumer takes the answers.
        most = (options.max_concurrent_batches + 2) * options.batch_size
        return max(min(size, most - self._items), 0)

    def take(self, elements: list[Any]) -> None:
        """Queue elements that have been read: as one call or, if one of them is refused, one by one.

        An element that is refused is answered with its error, and is the last one unless errors are kept. An
        error of the batcher is the end in any case.
        """
        try:
            self._driver.check()
            call = self._posted(elements)
        except Exception as error:  # noqa: BLE001  raised after the answers of the elements before
            self.end(error)
            return
        if call is not None:
            if self.queued is not None:
                self.queued.extend(elements)
            self.calls.append(call)
            self._items += call.size
            return
        for element in elements:
            if not self.ended:
                self.take([element])

    def _posted(self, elements: list[Any]) -> Call | None:
        """Return the call of `elements`, None if they are several and one of them is refused."""
        try:
            call: Call = self._collator.chunk(self._function, elements, monotonic())
            self._collator.own(call)
            call.note_context()
            self._options.apply_to(call)
            for part in (call, *call.parts):
                part.keep_errors = True
                part.flow = self._flow
                if self._options.priority is None:
                    part.bulk = True
            self._post(call)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001  of a callback, say, or of a mapping of the caller's own
            if len(elements) > 1:
                return None
            call = Call().begin(None, None, 1, False, 0.0)  # noqa: FBT003  it never runs
            call.waiter = call.waits_at = None
            call.waiting = call.missing = 0
            call.results = without_own_frames(error)
            # Last: near the recursion limit each of these may raise, which would find the map ended.
            self.ended = not self._options.return_exceptions
        return call

    def answers(self, call: Call, presentable: Callable[[BaseException], BaseException]) -> Iterator[Any]:
        """Yield the answers of `call`, and raise an error at its place."""
        is_own = getattr(call, "owns_error", False)
        for at, answer in enumerate(call.results if call.many else (call.results,)):
            if not is_error(answer):
                yield answer
            elif self._options.return_exceptions:
                yield copied(answer, is_own=is_own)
            else:
                error = presentable(copied(answer, is_own=is_own))
                with contextlib.suppress(Exception):  # a class may refuse attributes
                    error.add_note(f"item {self._passed + at + 1} of a map of {self.name}")
                try:
                    raise_as_was(error)
                finally:
                    del answer, error  # its traceback leads to this frame

    def late(self, call: Call, error: TimeoutError) -> list[Any]:
        """Return an answer for each element of `call`, which is late; raise it if errors are not kept."""
        if call.left != "expired" or not self._options.return_exceptions:
            raise_as_was(error)
        return [copied(without_own_frames(error), is_own=False) for _ in range(elements_of(call))]

    def pop(self) -> None:
        """Drop the oldest call: the consumer has its answers."""
        call = self.calls.popleft()
        self._items -= call.size
        self._passed += elements_of(call)

    def leave(self) -> None:
        """Forget all calls: they know what they share, which knows those of a bounded queue."""
        self.calls.clear()
        self.queued = None
        self._flow.parts = []

    def end(self, error: BaseException | None = None) -> None:
        """Read no more, and have `finish` raise `error`. Only the first end counts."""
        if not self.ended:
            self.ended = True
            if error is not None:
                self._errors.append(error)

    def finish(self) -> None:
        """Raise the error that ended the source, if one did."""
        if self._errors:
            raise_as_was(self._errors.pop())  # removed: its traceback leads to this frame


def elements_of(call: Call) -> int:
    """Return how many elements of the source a call has: features of several rows are one."""
    return call.size if call.many else 1


class SizedAnswers:
    """The answers of a map over sources that have a length, with their number: `tqdm` asks for it."""

    __slots__ = ("_answers", "_left")

    frame: ClassVar[str]
    """The attribute of the generator of the answers that is None after its end."""

    def __init__(self, answers: Any, length: int) -> None:
        self._answers = answers
        self._left = length

    def __len__(self) -> int:
        """Return how many answers have not been asked for yet, as far as the sources can tell."""
        return 0 if getattr(self._answers, self.frame) is None else max(self._left, 0)

    __length_hint__ = __len__

    def __bool__(self) -> bool:
        return True  # an iterator is true, however many answers are left


def length_of(sources: tuple[object, ...]) -> int | None:
    """Return how many elements the shortest of the sources says that it has, None if one does not say."""
    try:
        length = min(length_hint(source, -1) for source in sources)
    except Exception:  # noqa: BLE001  of the source; nothing depends on its length
        return None
    return None if length < 0 else length


def iterator_over(source: Any, name: str) -> Iterator[Any]:
    """Return an iterator over `source`; `TypeError` that has the `name` of the map if there is none."""
    try:
        return iter(source)
    except TypeError:
        if hasattr(type(source), "__iter__"):  # it is of the source's own code
            raise
    remedy = "; an asynchronous one is for amap" if isinstance(source, AsyncIterable) else ""
    raise TypeError(f"{name} takes a list of items, or another iterable, got {reprlib.repr(source)}{remedy}")


def of_sources(method: MethodT) -> MethodT:
    """Have `method`, a kind of map, say what it takes where it is given options of a call, or parameters."""

    @wraps(method)
    def checked(self: Any, /, *sources: Any, with_items: bool = False, **named: Any) -> Any:
        if named or not sources:
            given = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in named.items()) or "nothing"
            raise TypeError(
                f"{self._name}.{method.__name__} takes a list of items, or another iterable, by position, "
                f"and with_items, got {given}{told_of_options(named, ())}"
            )
        return method(self, *sources, with_items=with_items)

    return cast("MethodT", checked)


def map_items(
    function: Any,
    shared: Shared[Any],
    driver: ThreadDriver,
    sources: tuple[Iterable[Any], ...],
    *,
    with_items: bool,
) -> Answers[Any]:
    """Return an iterator over the answers for the elements of the sources, each perhaps with its element."""
    each = [iterator_over(source, f"{driver.name}.map") for source in sources]
    source = each[0] if len(each) == 1 else map(Row, zip(*each, strict=False))
    answers = _ThreadReadAhead(function, shared, driver, with_items=with_items).follow(source)
    length = length_of(sources)
    return answers if length is None else _Answers(answers, length)


def beside_items(answers: Iterable[Any], queued: deque[Any]) -> Iterator[Any]:
    """Yield each answer in a pair with its item, the first of the elements that are `queued`."""
    for answer in answers:
        element = queued.popleft()
        yield tuple(element) if isinstance(element, Row) else element, answer


class _ThreadReadAhead(ReadAhead):
    """The calls of a map with a thread as its consumer."""

    _driver: ThreadDriver

    def follow(self, source: Iterator[Any]) -> Generator[Any]:
        """Yield the answers for the elements of `source`."""
        try:
            while True:
                while room := self.room():
                    self._read(source, room)
                if not self.calls:
                    break
                answers = self._collect(self.calls[0])
                yield from answers if self.queued is None else beside_items(answers, self.queued)
                self.pop()
        finally:
            for call in self.calls:
                self._driver.cancel(call)
            self.leave()
        self.finish()

    def _read(self, source: Iterator[Any], room: int) -> None:
        """Take the next elements of `source`, and note its end."""
        elements: list[Any] = []
        error: BaseException | None = None
        try:
            elements.extend(islice(source, room))
        except BaseException as broken:  # noqa: BLE001  raised after the answers of the elements before
            error = without_own_frames(broken)
        if elements:
            self.take(elements)
        if len(elements) < room:
            self.end(error)
        del error  # frames of its traceback lead here

    def _post(self, call: Call) -> None:
        call.waiter = None
        if call.missing:
            self._driver.post(call, waits=True)
        else:
            self._driver.count_cached(call)

    def _collect(self, call: Call) -> Iterable[Any]:
        try:
            if call.waiter is not None:
                self._driver.warn_on_loop("fn.map(xs)", "async for y in fn.amap(xs)")
                self._driver.collect(call)
        except TimeoutError as error:
            return self.late(call, error)
        return self.answers(call, for_iterator)


class _Answers(SizedAnswers):
    __slots__ = ()

    frame = "gi_frame"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._left -= 1
        return next(self._answers)

    def close(self) -> None:
        """Stop: drop the items that have not started."""
        self._answers.close()
