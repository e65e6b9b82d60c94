"""`map`, and the rules that it shares with `amap`: many items, lazily, in order, in bounded memory.

Each element of the source is one item, with an answer or an error of its own at its own place. Elements are
queued ahead of the consumer, as calls of one or several elements.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from operator import length_hint
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from batched._api.call_options import apply_options
from batched._core.call import Call, Row
from batched.errors import ClosedError, copied, for_iterator, raise_as_was, without_own_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from batched._api.binding import Shared
    from batched._api.driver import Driver
    from batched._drivers.thread import ThreadDriver

__all__ = ["Ahead", "Chunks", "length_of", "map_items"]


class Chunks:
    """The rules of a map: how elements become calls (chunks), and how the answers of these are yielded."""

    def __init__(self, function: Any, shared: Shared[Any], batcher: Driver) -> None:
        self.batcher = batcher
        self.options = shared.call_options
        self._function = function
        self._collator = shared.collator

    def limits(self) -> tuple[int, int]:
        """Return how many elements are queued as one call, and how many items are queued ahead."""
        options = self.batcher.options
        size = self.batcher.collator.chunk_size or options.batch_size
        if self.options.deadline_ms is not None:
            size = 1  # the deadline holds for each item
        if options.max_queue_size is not None:
            size = min(size, options.max_queue_size)
        return size, 3 * options.batch_size

    def call_of(self, elements: list[Any]) -> Call:
        """Return the call for some elements, which keeps errors in their places."""
        call: Call = self._collator.chunk(self._function, elements, monotonic())
        self._collator.own(call)
        call.note_context()
        apply_options(self.options, call)
        for part in (call, *call.parts):
            part.keep_errors = True
            if self.options.priority is None:
                part.bulk = True
        return call

    def answers(self, call: Call, presentable: Callable[[BaseException], BaseException]) -> Iterator[Any]:
        """Yield the answers of `call`, and raise an error at its place."""
        for answer in call.results if call.many else (call.results,):
            if not isinstance(answer, BaseException):
                yield answer
            elif self.options.return_exceptions:
                yield copied(answer)
            else:
                raise_as_was(presentable(copied(answer)))

    def late(self, call: Call, error: TimeoutError) -> Iterator[Any]:
        """Return the answer of `call`, of one element, that is late or timed out otherwise."""
        if call.left != "expired" or not self.options.return_exceptions:
            raise_as_was(error)
        return iter([without_own_frames(error)])


class Ahead:
    """The calls that are queued ahead of the consumer, oldest first."""

    def __init__(self, chunks: Chunks, post: Callable[[Call], None]) -> None:
        self.calls: deque[Call] = deque()
        self.ended = False
        self._errors: list[BaseException] = []
        self._items = 0
        self._chunks = chunks
        self._post = post

    def room(self) -> int:
        """Return how many elements may be read now, to be queued as one call."""
        if self.ended:
            return 0
        size, ahead = self._chunks.limits()
        return max(min(size, ahead - self._items), 0)

    def take(self, elements: list[Any]) -> None:
        """Queue elements that have been read: as one call or, if one of them is refused, one by one.

        An element that is refused is answered with its error, and is the last one unless errors are kept. An
        error of the batcher is the end in any case.
        """
        try:
            self._chunks.batcher.check()
            call = self._posted(elements)
        except Exception as error:  # noqa: BLE001  raised after the answers of the elements before
            self.end(error)
            return
        if call is not None:
            self.calls.append(call)
            self._items += call.size
            return
        for element in elements:
            if not self.ended:
                self.take([element])

    def _posted(self, elements: list[Any]) -> Call | None:
        """Return the call of `elements`, None if they are several and one of them is refused."""
        try:
            call = self._chunks.call_of(elements)
            self._post(call)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001  of a callback, say, or of a mapping of the caller's own
            if len(elements) > 1:
                return None
            self.ended = not self._chunks.options.return_exceptions
            return _refused(error)
        return call

    def pop(self) -> None:
        """Forget the oldest call: the consumer has its answers."""
        self._items -= self.calls.popleft().size

    def end(self, error: BaseException | None = None) -> None:
        """Read no more, and let `finish` raise `error`. Only the first end counts."""
        if not self.ended:
            self.ended = True
            if error is not None:
                self._errors.append(error)

    def finish(self) -> None:
        """Raise the error that ended the source, if one did."""
        if self._errors:
            raise_as_was(self._errors.pop())  # no longer found by way of its own traceback, which leads here


def _refused(error: Exception) -> Call:
    """Return the call of one element, answered already with `error`."""
    call = Call().begin(None, None, 1, False, 0.0)  # noqa: FBT003  it never runs
    call.waiter = call.loop = None
    call.waiting = call.missing = 0
    call.results = without_own_frames(error)
    return call


def length_of(sources: tuple[object, ...]) -> int | None:
    """Return how many elements the shortest of the sources says that it has, None if one does not say."""
    try:
        length = min(length_hint(source, -1) for source in sources)
    except Exception:  # noqa: BLE001  of the source's own making, and nothing depends on it
        return None
    return None if length < 0 else length


def map_items(chunks: Chunks, batcher: ThreadDriver, sources: tuple[Iterable[Any], ...]) -> Iterator[Any]:
    """Return an iterator over the answers for the elements of the sources."""

    def post(call: Call) -> None:
        call.waiter = None
        if call.missing:  # else the cache knew it all
            batcher.post(call, waits=True)
        else:
            batcher.count_cached(call)

    def collect(call: Call) -> Iterator[Any]:
        try:
            if call.waiter is not None:
                batcher.warn_on_loop("fn.map(xs)", "async for y in fn.amap(xs)")
                batcher.collect(call)
        except TimeoutError as error:
            return chunks.late(call, error)
        return chunks.answers(call, for_iterator)

    source = iter(sources[0]) if len(sources) == 1 else map(Row, zip(*sources, strict=False))
    answers = _answers(source, Ahead(chunks, post), collect, batcher.cancel)
    length = length_of(sources)
    return answers if length is None else _Answers(answers, length)


def _answers(
    source: Iterator[Any],
    ahead: Ahead,
    collect: Callable[[Call], Iterator[Any]],
    leave: Callable[[Call], None],
) -> Generator[Any]:
    try:
        while True:
            while room := ahead.room():
                _read(source, room, ahead)
            if not ahead.calls:
                break
            yield from collect(ahead.calls[0])
            ahead.pop()
    finally:
        for call in ahead.calls:
            leave(call)
    ahead.finish()


def _read(source: Iterator[Any], room: int, ahead: Ahead) -> None:
    """Take the next elements of `source`, and note its end."""
    elements: list[Any] = []
    error: BaseException | None = None
    try:
        elements.extend(islice(source, room))
    except BaseException as broken:  # noqa: BLE001  raised after the answers of the elements before
        error = without_own_frames(broken)  # else its traceback would lead here, and so to itself
    if elements:
        ahead.take(elements)
    if len(elements) < room:
        ahead.end(error)


class _Answers:
    """The answers of a `map` over a source that has a length, with their number: `tqdm` asks for it."""

    __slots__ = ("_answers", "_left")

    def __init__(self, answers: Any, length: int) -> None:
        self._answers = answers
        self._left = length

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._left -= 1
        return next(self._answers)

    def __len__(self) -> int:
        """Return how many answers are still to come, as far as the source can tell."""
        return 0 if self._answers.gi_frame is None else max(self._left, 0)

    __length_hint__ = __len__

    def __bool__(self) -> bool:
        return True  # as any iterator is

    def close(self) -> None:
        """Leave: drop the items that have not started."""
        self._answers.close()
