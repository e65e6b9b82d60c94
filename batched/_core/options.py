"""The one table of options: of the decorators, of `configure`, and of single calls.

Each row is a field of a frozen dataclass. It says an option's name, type, default, sentence and check, and
whether the option is live: whether it can be changed while calls wait. Docstrings, signatures and checks are
made from these rows, and so is the page of options; the typed dicts in `batched._api.option_types` are
compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from batched._core.call import Call
from batched._core.option_checks import (
    Cache,
    Check,
    a_bool,
    a_cache,
    a_deadline,
    a_function,
    a_length,
    a_string,
    a_time,
    an_int,
    one_of,
    or_none,
    outputs,
    pad_values,
    round_up,
)

T = TypeVar("T")

Priority: TypeAlias = Literal["interactive", "bulk"]
"""What `priority` may be, besides None."""
OnFull: TypeAlias = Literal["raise", "wait"]
"""What `on_full` may be."""
PaddingSide: TypeAlias = Literal["right", "left"]
"""What `padding_side` may be."""

POSITIONAL = ("batch_size", "timeout_ms", "small_batch_threshold")
"""The options that may be given by position. `repr` always shows them."""

DEFAULT_MAX_PIECES = 100_000  # more than any text has


def _option(default: T, check: Check, text: str, *, live: bool = False) -> T:
    """Return one row of the table."""
    return field(default=default, metadata={"check": check, "text": text, "live": live})


def _check(options: Options | CallOptions) -> None:
    """Check every value, and keep the value that the check returns."""
    for row in fields(options):
        value = row.metadata["check"](row.name, getattr(options, row.name))
        object.__setattr__(options, row.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the decorators."""

    other_names: ClassVar[Mapping[str, str]] = {}
    """Further names of options, each with the name of the option."""
    not_taken: ClassVar[Mapping[str, str]] = {}
    """Options that are refused, each with the reason."""

    batch_size: int = _option(
        64,
        an_int(1),
        "The most items in one batch. Where fewer serve better, full batches have fewer (`adaptive`).",
        live=True,
    )
    timeout_ms: float = _option(
        5.0,
        a_time(or_zero=True),
        "How long an incomplete batch may wait for more items while the worker is idle; 0 never waits.",
        live=True,
    )
    small_batch_threshold: int = _option(
        8, an_int(0), "Calls of at most this many items go ahead of larger ones.", live=True
    )
    adaptive: bool = _option(
        True,
        a_bool,
        "Wait only while waiting pays, which is learned from the first batches on: for callers that were "
        "just answered and come straight back, and for the rest of a burst. The first few batches, and with "
        "False all batches, start when their oldest item is `timeout_ms` old, time behind a running batch "
        "included. Which size of full batches serves best is learned too, but where lengths are known and of "
        "functions that stream: others are tried now and then, in at most 2 % of the time, and only if that "
        "takes a small part of the time that calls with a deadline have left. With False full batches have "
        "`batch_size` items.",
        live=True,
    )
    max_concurrent_batches: int = _option(
        1,
        an_int(1),
        "How many batches run at once, each in a thread, or task, of its own. With more than 1, batches "
        "start as with `adaptive=False`.",
        live=True,
    )
    max_queue_size: int | None = _option(
        None,
        or_none(an_int(1)),
        "The most items that wait; None for no bound. A list is admitted whole or not at all.",
        live=True,
    )
    on_full: OnFull = _option(
        "raise",
        one_of("raise", "wait"),
        'What happens to a call for which the queue has no room: `"raise"` a `batched.QueueFullError`, or '
        '`"wait"` for room, first come first served. A `map` always waits, and '
        "fills at most half of the queue.",
        live=True,
    )
    isolate_errors: bool = _option(
        True,
        a_bool,
        "When a batch raises an `Exception`, run it again in halves until only the items that fail are left, "
        "and answer all others. Not for errors of the surroundings (a connection, a timeout, the system), "
        "nor in an outage: where more runs fail than a few items explain, the rest gets the error that it "
        "met, and then, until something works, only one item of a few failed batches runs again. Set it to "
        "False where running an item twice has effects, or changes or uses up the item: then all of a batch "
        "fail. A batch that holds an iterator or an object with `read`, or of which the number of results is "
        "wrong, runs once in any case.",
        live=True,
    )
    max_batch_length: int | None = _option(
        None,
        or_none(an_int(1)),
        "The most that the lengths of a batch's items add up to, by `length` or else `len`; for arrays, rows "
        "times the longest of them, along the second axis of padded features. An item that is longer runs "
        "alone. Without `length`, a tuple, dict or dataclass of texts, or several parameters, are as long as "
        "their texts together, and no order is changed.",
        live=True,
    )
    default_deadline_ms: float | None = _option(
        None,
        or_none(a_time(or_zero=False)),
        "The `deadline_ms` of every call that does not set its own with `fn.options(deadline_ms=...)`.",
    )
    length: Callable[..., float] | Literal["auto"] | None = _option(
        "auto",
        or_none(a_length),
        "How long items are: items of like length share a batch where padding to the longest one takes time, "
        "which is learned from the batches that run. Elsewhere the order is that of "
        'arrival. `"auto"` looks at strings, bytes, lists, and arrays or tensors with one axis; an item of '
        "several of these (a pair, a dict, a dataclass, several parameters) is as long as they are together. "
        "It looks in samples until length is known to cost time. A function returns an item's length, with "
        "several parameters it is given all of an item's; it is called once per item, in the caller's "
        "thread, and again where `map` refuses a neighbour. None never looks. Of small calls the oldest, and "
        "of large ones the one that has its turn, is left out of at most four batches in a row. Arrays know "
        "their lengths and take no `length`.",
    )
    group_by: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's key, for arrays the key of a call's features; one without "
        "parameters, such as the `get` of a context variable, is asked in the caller's context. Only items "
        "of an equal key share a batch, and keys take turns.",
    )
    fair_by: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's tenant, for arrays the tenant of a call's features; one without "
        "parameters, such as the `get` of a context variable, is asked in the caller's context. Tenants of "
        "which items wait share batches evenly: among small calls, among large ones, and within each key "
        "(`group_by`). All of a list belongs to the tenant of its first item. Where `max_queue_size` is "
        "reached, each has an equal share of it: a tenant that has less gets in, and the newest calls of the "
        "one that has most are refused for it; of calls that wait for room, those of the tenant that has "
        "least in the queue come first.",
    )
    cache: Cache | None = _option(
        None,
        or_none(a_cache),
        "A mapping of results (a dict, `cachetools.LRUCache`, `diskcache.Cache`), or an object with `set`, "
        "and a `get` that returns None for a key that it does not have, such as a client of Redis. Hits skip "
        "the queue; equal items in flight are computed once; errors are not cached. With `batched.aio`, "
        "awaitables that `get` and `set` return are awaited, until the deadline of the call at most.",
    )
    cache_key: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's key in the cache, for arrays the key of a call's features. "
        "Without it the item is the key, and of a method each instance has results of its own; arrays need "
        "one.",
    )
    max_pieces: int = _option(
        DEFAULT_MAX_PIECES,
        an_int(1),
        "For a function that is a generator: how many pieces may wait for one consumer. A consumer that "
        "falls further behind gets these, then a `batched.SlowConsumerError`; its neighbours go on.",
    )
    name: str | None = _option(
        None, or_none(a_string), "For threads, logs and errors; the function's own by default."
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.cache_key is not None and self.cache is None:
            raise TypeError("cache_key needs a cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions(Options):
    """The options of the decorators for arrays."""

    other_names: ClassVar[Mapping[str, str]] = {"pad_tokens": "pad_token"}
    not_taken: ClassVar[Mapping[str, str]] = {
        "length": "length cannot be used with arrays: they know their own lengths",
        "max_pieces": "max_pieces cannot be used with arrays: they do not stream",
    }

    pad_token: Any = _option(
        0,
        pad_values,
        "The padding of rows: a number, or a dict of a number per feature. `pad_tokens` is another name "
        "of it.",
    )
    padding_side: PaddingSide = _option(
        "right", one_of("right", "left"), 'Where rows are padded: `"right"`, after the row, or `"left"`.'
    )
    pad_to_multiple_of: int | Mapping[Any, int] | None = _option(
        None,
        or_none(round_up),
        "Round the length of rows, along their first axis, up to a multiple of this, also where the rows of "
        "a batch do not differ. A number is for all features that have such an axis, a dict has a number for "
        "each feature that is to be rounded. Further axes are rounded where they differ.",
    )
    unpad_outputs: bool | Mapping[Any, Any] = _option(
        False,
        outputs,
        "Cut the padding off the outputs, so that an answer does not depend on the other calls of its batch. "
        "True cuts each output with a second axis as long as that of the padded features. A dict says which "
        "outputs are padded, as another could be that long by chance, and as which feature: "
        '`{"logits": "input_ids"}`. The outputs in a list or tuple have numbers; an array has number 0. '
        "Where features were padded along further axes, those are cut too. If the rows of a call then differ "
        "in length, they come as a list.",
    )
    spread_kwargs: bool = _option(
        False,
        a_bool,
        "Pass the features by name, as `func(input_ids=..., attention_mask=...)`.",
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.cache is not None and self.cache_key is None:
            raise TypeError("a cache for arrays needs a cache_key, because arrays cannot be keys")

    def pad_of(self, key: object) -> Any:
        """Return the padding of the feature `key`."""
        return self.pad_token.get(key, 0) if isinstance(self.pad_token, dict) else self.pad_token

    def multiple_of(self, key: object) -> int:
        """Return the number that the lengths of the feature `key` are rounded up to a multiple of, or 1."""
        multiples = self.pad_to_multiple_of
        return (multiples.get(key) if isinstance(multiples, Mapping) else multiples) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of single calls."""

    deadline_ms: float | Literal["default"] | None = _option(
        "default",
        or_none(a_deadline),
        "The most that a call may take, waiting and running, counted from the call. Then it raises "
        "`TimeoutError`, even while the worker is busy, and items that have not started never run. A call "
        "that cannot be answered in time, by the time that batches have taken so far, raises "
        "`batched.OverloadError`, a `TimeoutError`, as soon as that is known. A future "
        "of `submit` that has no item left to start is answered late: bound that wait with "
        '`result(timeout=...)`. None means no deadline, `"default"` is `default_deadline_ms`.',
        live=True,
    )
    priority: Priority | None = _option(
        None,
        one_of("interactive", "bulk", None),
        '`"interactive"` goes ahead of `"bulk"`; None lets the size decide.',
        live=True,
    )
    return_exceptions: bool = _option(
        False,
        a_bool,
        "Return an exception in its item's place, as `asyncio.gather` does, instead of raising the first.",
        live=True,
    )

    def __post_init__(self) -> None:
        _check(self)

    def with_default(self, deadline_ms: float | None) -> CallOptions:
        """Return these options, with `deadline_ms` where they leave it to the decorator."""
        if self.deadline_ms != "default" or deadline_ms is None:
            return self
        return replace(self, deadline_ms=deadline_ms)

    def read(self, read: Callable[..., Call], *arguments: Any) -> Call:
        """Return the call that the collator's `read` makes of `arguments`, with these options."""
        call = read(*arguments)
        self.apply_to(call)
        return call

    def apply_to(self, call: Call) -> None:
        """Give `call`, and the calls that are its parts, these options."""
        for part in (call, *call.parts):
            if isinstance(self.deadline_ms, float):
                part.deadline = call.arrived + self.deadline_ms / 1000
            if self.priority is not None:
                part.bulk = self.priority == "bulk"
            part.keep_errors = self.return_exceptions


NO_OPTIONS = CallOptions()
"""The options of plain calls: a view without options of its own has this very object."""


def live_options(kind: type[Options | CallOptions]) -> list[str]:
    """Return the names of the options of `kind` that can be changed while calls wait."""
    return [row.name for row in fields(kind) if row.metadata["live"]]


def knows_lengths(options: Options) -> bool:
    """Whether with these options the length of each item is known from the start."""
    return (
        isinstance(options, ArrayOptions) or callable(options.length) or options.max_batch_length is not None
    )
