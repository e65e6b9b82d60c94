"""The one table of options: of the decorators, of `configure`, and of single calls.

Each row is a field of a frozen dataclass. It says an option's name, type, default, sentence and check, and
whether the option is live: whether it can be changed while calls wait. Docstrings, signatures and checks are
made from these rows, and so are the facts on the page of options; the typed dicts in
`batched._api.option_types` are compared with them. A text is what `help` and the page show: a few short
sentences, of which editors show the first. What takes longer to say stands on the page.

After the options that may be given by position, rows stand in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from batched._core.batch_record import BatchRecord
from batched._core.call import Call
from batched._core.option_checks import (
    Cache,
    Check,
    MappingCache,
    SharedByFunctions,
    a_bool,
    a_cache,
    a_deadline,
    a_function,
    a_length,
    a_request_cache,
    a_stage,
    a_string,
    a_time,
    a_timeout,
    an_int,
    ascending,
    for_each,
    one_of,
    or_none,
    outputs,
    pad_values,
    workers,
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

_OF_STREAMS = ("max_pieces", "continuous", "max_joining", "max_joining_length")
DEFAULT_MAX_PIECES = 100_000  # more than any text has
_MOST_TOLD = 10


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
    streams: ClassVar[bool] = False
    """Whether they are those of a generator, which yields its results piece by piece."""

    batch_size: int = _option(
        64,
        an_int(1),
        "The most items in one batch. With `adaptive`, full batches are smaller where that is faster.",
        live=True,
    )
    timeout_ms: float | Literal["auto"] = _option(
        "auto",
        a_timeout,
        "How many milliseconds an incomplete batch may wait for more items while the worker is idle. "
        '0 never waits. `"auto"` is 5 ms until the cost of a batch is known, and then that cost; with '
        "`adaptive=False` it stays 5 ms.",
        live=True,
    )
    small_batch_threshold: int = _option(
        8, an_int(0), "Calls of at most this many items go ahead of larger ones.", live=True
    )
    adaptive: bool = _option(
        True,
        a_bool,
        "Learn from past batches when it pays to wait for more items, and how large a full batch should be. "
        "With False, an incomplete batch starts when its oldest item is `timeout_ms` old, and a full one has "
        "`batch_size` items.",
        live=True,
    )
    max_concurrent_batches: int = _option(
        1,
        an_int(1),
        "How many batches run at once, each in its own thread or task.",
        live=True,
    )
    workers: SharedByFunctions | None = _option(
        None,
        or_none(workers),
        "The worker threads that run the batches: a `batched.Workers`, which other functions may share. With "
        "None, the function has threads of its own, as many as `max_concurrent_batches`.",
    )
    batch_sizes: Sequence[int] | None = _option(
        None,
        or_none(ascending),
        "The only sizes that a batch may have, in ascending order, for a compiled model. A batch of another "
        "size is cut to one of these, or filled up with copies of one of its items; the results of copies "
        "are dropped. `batch_size` is the largest of the sizes.",
    )
    prepare: Callable[..., Any] | str | None = _option(
        None,
        or_none(a_stage),
        "What to do with a batch before the function, such as to tokenize it: while one batch is in the "
        "function, the next one is prepared in a second thread. It gets what the function would get, and the "
        "function gets what it returns. A function, or the name of a method of the same class. With "
        "`workers`, each prepares its own batches.",
    )
    finish: Callable[..., Any] | str | None = _option(
        None,
        or_none(a_stage),
        "What to do with the outputs of a batch after the function, such as to turn them into lists: while "
        "the next batch is in the function, they are finished in a third thread. It gets what the function "
        "returns, and returns one result per item. A function, or the name of a method of the same class. "
        "With `workers`, each finishes its own batches.",
    )
    default_deadline_ms: float | None = _option(
        None,
        or_none(a_time(or_zero=False)),
        "The deadline in milliseconds of every call that does not set its own `deadline_ms`; None for no "
        "deadline.",
    )
    max_queue_size: int | None = _option(
        None,
        or_none(an_int(1)),
        "The most items that may wait in the queue; None for no limit. A list is admitted whole or not at "
        "all.",
        live=True,
    )
    on_full: OnFull = _option(
        "raise",
        one_of("raise", "wait"),
        'What a call does when the queue has no room: raise `batched.QueueFullError` (`"raise"`), or wait, '
        'first come first served (`"wait"`). A `map` always waits.',
        live=True,
    )
    fair_by: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's tenant: tenants with waiting items share batches evenly. It takes "
        "an item, for arrays the features of a call, or nothing, as the `get` of a context variable does. A "
        "list belongs to the tenant of its first item. In a full queue each tenant has an equal share of "
        "`max_queue_size`.",
    )
    isolate_errors: bool = _option(
        True,
        a_bool,
        "When a batch raises an `Exception`, run it again in halves, so that only the items at fault get the "
        "error. Set it to False if running an item twice has side effects, or changes the item: then every "
        "call in the batch gets the error. Connection errors and timeouts are not retried, and retries stop "
        "when nearly everything fails.",
        live=True,
    )
    length: Callable[..., float] | Literal["auto"] | None = _option(
        "auto",
        or_none(a_length),
        "How long an item is: items of similar length share a batch where padding proves to cost time. "
        '`"auto"` measures strings, bytes, lists, and arrays with one axis, also inside a tuple, dict or '
        "dataclass. A function returns the length of one item. None never looks: the order is that of "
        "arrival. Arrays know their lengths, and do not take this option.",
    )
    max_batch_length: int | None = _option(
        None,
        or_none(an_int(1)),
        "The most that the lengths of a batch's items may add up to; for arrays, rows times the longest row. "
        "Lengths are what `length` returns, or else `len`. An item that is longer runs alone.",
        live=True,
    )
    group_by: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's key: only items with equal keys share a batch, and keys take "
        "turns. It takes an item, for arrays the features of a call, or nothing, as the `get` of a context "
        "variable does.",
    )
    cache: Cache | None = _option(
        None,
        or_none(a_cache),
        "Where results are kept: a mapping (a dict, `cachetools.LRUCache`, `diskcache.Cache`), or an object "
        "with `set`, and with a `get` that returns None for a missing key, such as a Redis client. Hits skip "
        "the queue; equal items in flight are computed once; errors are not cached. With `batched.aio`, "
        "`get` and `set` may be asynchronous.",
    )
    cache_key: Callable[..., Hashable] | None = _option(
        None,
        or_none(a_function),
        "A function that returns an item's key in `cache` and in `request_cache`; for arrays, which need "
        "one, it takes the features of a call. Without it, the item is the key, and each instance of a class "
        "has its own results.",
    )
    max_pieces: int = _option(
        DEFAULT_MAX_PIECES,
        an_int(1),
        "How many pieces of a stream may wait for its consumer. A consumer that falls further behind gets "
        "these, then a `batched.SlowConsumerError`; the other streams of its batch go on.",
    )
    continuous: bool = _option(
        False,
        a_bool,
        "Whether items join a batch while it runs, in the places of those that have ended. The function is a "
        "generator that is told of it: `change = yield pieces` returns a `batched.Change`.",
    )
    max_joining: int | None = _option(
        None,
        or_none(an_int(1)),
        "How many items may join a batch at one step, with `continuous`. A step in which items join takes "
        "longer, and those that are there wait for it.",
    )
    max_joining_length: int | None = _option(
        None,
        or_none(an_int(1)),
        "The most that the lengths of the items that join at one step may add up to, with `continuous`. An "
        "item that is longer joins alone.",
    )
    on_batch: Callable[[BatchRecord], object] | None = _option(
        None,
        or_none(partial(a_function, of="a batched.BatchRecord", takes=1)),
        "A function that is told of each batch after it has run, with a `batched.BatchRecord`. It is called "
        "in a thread of its own, so neither calls nor batches wait for it; if it fails, that is logged once.",
    )
    name: str | None = _option(
        None,
        or_none(a_string),
        "The name in threads, logs, errors and metrics; the function's own by default.",
    )

    def __post_init__(self) -> None:
        _check(self)
        if not self.continuous and (self.max_joining is not None or self.max_joining_length is not None):
            name = "max_joining" if self.max_joining is not None else "max_joining_length"
            raise TypeError(f"{name} needs continuous=True: else no item joins a batch that runs")
        if self.continuous and self.batch_sizes is not None:
            raise TypeError(
                "batch_sizes cannot be used with continuous=True, as items come and go: have the function "
                "fill its rows up to a size"
            )
        if self.workers is not None:
            number = len(self.workers.names)
            if self.max_concurrent_batches not in {1, number}:
                raise TypeError(
                    f"max_concurrent_batches={self.max_concurrent_batches} cannot be used with workers, of "
                    f"which there are {number}: leave it out"
                )
            object.__setattr__(self, "max_concurrent_batches", number)
        if self.batch_sizes is not None and self.batch_size != self.batch_sizes[-1]:
            raise ValueError(
                f"batch_size={self.batch_size} is not the largest of batch_sizes={self.batch_sizes}: leave "
                f"batch_size out"
            )
        if self.batch_sizes is not None and not self.isolate_errors and self.batch_sizes[0] > 1:
            raise ValueError(
                f"batch_sizes={self.batch_sizes} needs copies of items, but with isolate_errors=False no "
                f"item may run twice: have 1 among the sizes"
            )
        if has_stages(self) and self.max_concurrent_batches > 1 and self.workers is None:
            given = "prepare" if self.prepare is not None else "finish"
            raise ValueError(
                f"{given} cannot be used with max_concurrent_batches={self.max_concurrent_batches}: batches "
                f"overlap by stages, one in each. Leave one of them out; for several devices, use workers"
            )

    @property
    def weight(self) -> float | None:
        """The weight of the function among those that share its workers; None if it was given none."""
        return None if self.workers is None else self.workers.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(Options):
    """The options of a function that streams: decorators find out that it does."""

    streams: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions(Options):
    """The options of the decorators for arrays."""

    other_names: ClassVar[Mapping[str, str]] = {"pad_tokens": "pad_token"}
    not_taken: ClassVar[Mapping[str, str]] = {
        "length": "length cannot be used with arrays: they know their own lengths",
        **{name: f"{name} cannot be used with arrays: they do not stream" for name in _OF_STREAMS},
    }

    pad_token: Any = _option(
        0,
        pad_values,
        "What rows are padded with: a number, or a dict with a number for each feature. `pad_tokens` is "
        "another name for it.",
    )
    padding_side: PaddingSide = _option(
        "right",
        one_of("right", "left"),
        'Where rows are padded: `"right"`, after the row, or `"left"`, before it.',
    )
    pad_to_multiple_of: int | Mapping[Any, int] | None = _option(
        None,
        or_none(for_each(an_int(1))),
        "Round the length of rows up to a multiple of this: a number for all features, or a dict with a "
        "number for each feature to round.",
    )
    pad_to_lengths: Sequence[int] | Mapping[Any, Sequence[int]] | None = _option(
        None,
        or_none(for_each(ascending)),
        "The only lengths that rows may be padded to, in ascending order: each batch has the first one that "
        "is long enough. A tuple for all features, or a dict with a tuple for each feature to pad. A call "
        "with a longer row raises `ValueError`.",
    )
    unpad_outputs: bool | Mapping[Any, Any] = _option(
        False,
        outputs,
        "Cut the padding off the outputs, so that an answer does not depend on the other calls in its batch. "
        "True cuts each output with a second axis as long as that of the padded features. A dict names the "
        'outputs to cut, each with the feature that it follows: `{"logits": "input_ids"}`.',
    )
    spread_kwargs: bool = _option(
        False,
        a_bool,
        "Pass the features by name, as `func(input_ids=..., attention_mask=...)`, instead of as one dict.",
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.cache is not None and self.cache_key is None:
            raise TypeError("a cache for arrays needs a cache_key, because arrays cannot be keys")
        if both := _named_by_both(self.pad_to_lengths, self.pad_to_multiple_of):
            raise TypeError(f"pad_to_lengths and pad_to_multiple_of cannot both be set for {both}")

    def pad_of(self, key: object) -> Any:
        """Return the padding of the feature `key`."""
        return self.pad_token.get(key, 0) if isinstance(self.pad_token, dict) else self.pad_token

    def steps_of(self, key: object) -> int | tuple[int, ...]:
        """Return what the lengths of the feature `key` are rounded up to: a multiple, or one of a tuple."""
        multiples = self.pad_to_multiple_of
        multiple = multiples.get(key) if isinstance(multiples, Mapping) else multiples
        return self.lengths_of(key) or multiple or 1

    def lengths_of(self, key: object) -> tuple[int, ...] | None:
        """Return the lengths that the feature `key` may have, None if it may have any."""
        lengths: Any = self.pad_to_lengths
        return lengths.get(key) if isinstance(lengths, Mapping) else lengths


def _named_by_both(one: Any, other: Any) -> str:
    """Return the feature for which two options of arrays are set, "" if there is none."""
    if one is None or other is None:
        return ""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return next((repr(key) for key in one if key in other), "")
    named = next((each for each in (one, other) if isinstance(each, Mapping)), {None: None})
    return next(("one feature" if key is None else repr(key) for key in named), "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallOptions:
    """The options of single calls."""

    deadline_ms: float | Literal["default"] | None = _option(
        "default",
        or_none(a_deadline),
        "The most milliseconds from a call to its answer. A call that is late raises `TimeoutError`, and its "
        "items that have not started never run. A call that would be late raises `batched.OverloadError`, a "
        '`TimeoutError`, as soon as that is known. None is no deadline; `"default"` is '
        "`default_deadline_ms`.",
        live=True,
    )
    priority: Priority | None = _option(
        None,
        one_of("interactive", "bulk", None),
        '`"interactive"` calls go ahead of `"bulk"` calls; None lets the size decide '
        "(`small_batch_threshold`).",
        live=True,
    )
    return_exceptions: bool = _option(
        False,
        a_bool,
        "Return each exception in its item's place, as `asyncio.gather` does, instead of raising the first.",
        live=True,
    )

    request_cache: MappingCache | None = _option(
        None,
        or_none(a_request_cache),
        "Where the results of one request are kept: a dict, or another mapping, which is new for each "
        "request. An item that the request has asked for is not asked for again, also while it is in flight; "
        "errors are not kept. It lies in front of `cache`, and the keys are the same.",
        live=True,
    )

    def __post_init__(self) -> None:
        _check(self)

    # A cache is the user's: it is not looked into, and two empty ones are two.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallOptions):
            return NotImplemented
        return self._others() == other._others() and self.request_cache is other.request_cache

    def __hash__(self) -> int:
        return hash((self._others(), id(self.request_cache)))

    def _others(self) -> tuple[Any, ...]:
        return self.deadline_ms, self.priority, self.return_exceptions

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


def where_taken(name: str) -> str:
    """Return, as the end of a sentence, where an option is given; "" if none has the `name`."""
    if name in live_options(CallOptions):
        return f", which is an option of calls: fn.options({name}=...)"
    if name in live_options(Options):
        return ", which the decorator takes and fn.configure changes"
    if name in {row.name for row in fields(Options)}:
        return ", which only the decorator takes"
    is_of_arrays = name in {row.name for row in fields(ArrayOptions)} | {*ArrayOptions.other_names}
    return ", which batched.inference.dynamically takes" if is_of_arrays else ""


OF_OTHERS = {
    "batch_size_fn": "length",  # Ray Serve
    "batch_timeout": "timeout_ms",  # LitServe
    "deadline": "default_deadline_ms",
    "max_latency_ms": "default_deadline_ms",  # BentoML
    "max_queue_delay_microseconds": "timeout_ms",  # Triton
    "max_wait_ms": "timeout_ms",
    "postprocess": "finish",
    "timeout": "deadline_ms",  # of a call; for the decorator, the nearest name is right
}
"""Options of other libraries, and words for them, that are not like the names here."""


def told_of_options(named: Iterable[str], parameters: Container[str]) -> str:
    """Return what to add to the error of a call that was given an option; "" if all are `parameters`."""
    for name in named:
        if name not in parameters:
            if taken := where_taken(name):
                return f"; it has no parameter {name!r}{taken}"
            if (meant := OF_OTHERS.get(name)) in live_options(CallOptions):
                return f"; it has no parameter {name!r} (did you mean {meant!r}?){where_taken(meant)}"
    return ""


def have_changed(options: Options, before: Options) -> bool:
    """Whether an option that can be changed has another value than `before`.

    The others are not compared: they may be objects of the user, such as a cache, which `==` walks through.
    """
    return any(getattr(options, name) != getattr(before, name) for name in live_options(Options))


def options_told(options: Options | CallOptions, always: Sequence[str] = ()) -> list[str]:
    """Return the options that are not the defaults, and those that are told `always`, as in a call."""
    return [
        f"{row.name}={_told(value)}"
        for row in fields(options)
        if (value := getattr(options, row.name)) != row.default or row.name in always
    ]


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping) and len(value) > _MOST_TOLD:  # a cache, with all that it holds
        return f"<{type(value).__name__} of {len(value)}>"
    return repr(value)


def has_stages(options: Options) -> bool:
    """Whether a batch passes more than one stage with these options."""
    return options.prepare is not None or options.finish is not None


def last_stage(name: str, options: Options) -> str:
    """Return what makes one result per item for the function of this `name`, as errors name it."""
    return name if options.finish is None else f"finish of {name}"


def knows_lengths(options: Options) -> bool:
    """Whether with these options the length of each item is known from the start."""
    return (
        isinstance(options, ArrayOptions)
        or callable(options.length)
        or options.max_batch_length is not None
        or options.max_joining_length is not None
    )
