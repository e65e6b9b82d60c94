"""`prepare` and `finish`: a batch passes them before and after the batch function.

Here they are found, bound to the instance of a method, and called; a driver decides in which thread or task,
and beside which other batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import unwrap
from types import FunctionType
from typing import Any, Self

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.call import Call, Wrapper
from batched._core.collator import Divisible, InFront
from batched._core.options import Options
from batched._core.parameters import is_async_def, signature_of
from batched.errors import RestartWorker, error_behind

_IN_WORDS = {"prepare": "preparing", "function": "running", "finish": "finishing"}


class Steps:
    """One batch on its way: each step is to be taken once, in this order."""

    __slots__ = ("_args", "_function", "_named", "around", "finishes", "given", "made", "prepares", "without")

    def __init__(
        self,
        prepares: Callable[..., Any] | None,
        function: Callable[..., Any],
        finishes: Callable[..., Any] | None,
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.prepares: Any = prepares
        """The function of the first stage, None if there is none."""
        self._function = function
        self.finishes: Any = finishes
        """The function of the last stage, None if there is none."""
        self._args = args
        self._named = named
        self.around: Callable[[str, Callable[[], Any]], Any] = _take
        """Takes a step, of which it is told the name: for what is to be around it."""
        self.given: int | None = None
        """How many elements `prepare` has returned, if that is a list or a tuple."""
        self.made: int | None = None
        """How many elements or rows `finish` was given, if that is a list, a tuple or an array."""
        self.without: str | None = None
        """What to say of an error of this stage if it was given None; None if it was given something."""

    @property
    def last(self) -> str:
        """The stage that makes one result per item."""
        return "function" if self.finishes is None else "finish"

    def prepare(self) -> Any:
        """Return what `prepare` makes of the items; the function is to be given that (`prepared`)."""
        args, named = self._args, self._named
        self._args, self._named = (), {}
        return self.around("prepare", partial(self.prepares, *args, **named))

    def prepared(self, inputs: Any) -> None:
        """Have the function be given `inputs`."""
        self._args = (inputs,)
        self.given = len(inputs) if type(inputs) in {list, tuple} else None
        if inputs is None:
            self.without = "prepare returned None, which the function was given"

    def run(self) -> Any:
        """Return the outputs of the function."""
        args, named = self._args, self._named
        self._args, self._named = (), {}  # they are dropped as soon as the function has ended
        return self.around("run", partial(self._function, *args, **named))

    def finish(self, outputs: Any) -> Any:
        """Return one result per item."""
        self.made = _size_of(outputs)
        self.without = "the function returned None, which finish was given" if outputs is None else None
        return self.around("finish", partial(self.finishes, outputs))


def _take(_: str, step: Callable[[], Any]) -> Any:
    return step()


class Passage:
    """A batch on its way through its stages: `with passage.stage(name):` it is in one of them."""

    __slots__ = ("_began", "_stage", "batch", "seconds", "steps")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.steps: Any = None
        """Its `Steps`, once it has begun."""
        self.seconds: list[float] = []
        """How long it was in each stage that it has left."""

    def stage(self, name: str) -> Self:
        """Have it be in the stage of this name from now on."""
        self._stage, self._began = name, monotonic()
        return self

    def __enter__(self) -> None:
        """Do nothing: `stage` has noted when it began."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool | None:
        self.seconds.append(monotonic() - self._began)
        if error is not None:
            note_stage(error, self._stage, self.batch)
            if self.steps is not None:
                _note_given(error, self.steps, getattr(self.batch, "returned", None))
        return None


def _note_given(error: BaseException, steps: Steps, returned: int | None) -> None:
    """Note on `error` that an earlier stage is at fault: it made None, or as many as were `returned`."""
    note = steps.without
    if returned is not None and returned in {steps.given, steps.made}:
        elements = "element" if returned == 1 else "elements"
        was_prepared = steps.given == returned
        maker, taker = ("prepare", "the function") if was_prepared else ("the function", "finish")
        note = f"{maker} returned {returned} {elements} for these, which {taker} was given"
    if note is None or note in getattr(error, "__notes__", ()):
        return
    with suppress(Exception):  # a class may refuse attributes
        error.add_note(note)


def _size_of(outputs: Any) -> int | None:
    """Return how many elements a list or a tuple has, or how many rows an array; None for anything else."""
    if type(outputs) in {list, tuple}:
        return len(outputs)
    with suppress(Exception):  # whatever it is, it may fail when asked
        shape = outputs.shape
        return int(shape[0]) if isinstance(shape, tuple) and shape else None
    return None


class _Staged:
    """A decorated function of which a call makes the `Steps` of a batch, in the place of a view."""

    __slots__ = ("_finish", "_function", "_prepare")

    def __init__(self, function: Wrapper, options: Options) -> None:
        self._function = function
        self._prepare = options.prepare
        self._finish = options.finish

    @property
    def __wrapped__(self) -> Callable[..., Steps]:
        function = self._function.__wrapped__
        owner = getattr(function, "__self__", None)
        prepare = found(self._prepare, function, owner)
        finish = found(self._finish, function, owner)

        def steps(*args: Any, **named: Any) -> Steps:
            return Steps(prepare, function, finish, args, named)

        # For its signature:
        steps.__wrapped__ = function if prepare is None else prepare  # type: ignore[attr-defined]
        return steps


class StagedCollator(InFront):
    """Another collator, of which the batches pass stages."""

    def __init__(self, collator: Divisible, options: Options) -> None:
        super().__init__(collator)
        self._options = options

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        return make(_Staged(function, self._options), *args)


def found(stage: Callable[..., Any] | str | None, function: Any, owner: object) -> Any:
    """Return the function of a stage; if it is a method, bound to `owner`, the instance or class.

    It is one if it is given by its name, or stands in the same class and has the same first parameter.
    """
    if isinstance(stage, str):
        return getattr(owner, stage)
    if owner is not None and is_method_beside(stage, function):
        return stage.__get__(owner)  # type: ignore[union-attr]
    return stage


def is_method_beside(stage: object, function: Any) -> bool:
    """Whether `stage` is a function of the class of `function`, with the same first parameter: `self`."""
    plain = getattr(function, "__func__", function)
    if not (isinstance(stage, FunctionType) and isinstance(plain, FunctionType)):
        return False
    its_class = plain.__qualname__.rpartition(".")[0]
    beside, inner = unwrap(stage), unwrap(plain)  # as decorators may be between
    if not (isinstance(beside, FunctionType) and isinstance(inner, FunctionType)):
        return False
    first, other = beside.__code__, inner.__code__
    return (
        bool(its_class)
        and not its_class.endswith("<locals>")
        and stage.__qualname__.rpartition(".")[0] == its_class
        and stage.__module__ == plain.__module__
        and bool(first.co_argcount)
        and first.co_varnames[:1] == other.co_varnames[:1]
    )


def first_of(func: Any, options: Options, name: str, owner: object, *, bound: bool) -> tuple[Any, bool]:
    """Return the function that gets the items of a batch, and whether it is bound to `owner`.

    Raises `TypeError` for the name of a method where there is no instance.
    """
    for stage, given in (("prepare", options.prepare), ("finish", options.finish)):
        if isinstance(given, str):
            holder = owner if bound else getattr(func, "__self__", None)
            if holder is None:
                raise TypeError(
                    f"{stage}={given!r} names a method, but {name} is a plain function: "
                    f"give the function itself"
                )
            if not callable(getattr(holder, given, None)):
                kind = holder if isinstance(holder, type) else type(holder)
                raise TypeError(
                    f"{stage}={given!r}: {kind.__qualname__} has no method of that name, for {name}"
                )
    prepare = options.prepare
    if prepare is None:
        return func, bound
    if isinstance(prepare, str):
        holder = owner if bound else func.__self__
        return getattr(holder, prepare), False
    return prepare, is_method_beside(prepare, func)


def note_stage(error: BaseException, stage: str, batch: Batch) -> None:
    """Note on `error` in which stage of `batch` it was raised; of one that is raised again, the last."""
    size = batch.size
    if isinstance(error, RestartWorker):
        error = error_behind(error)  # callers get that
    note = f"while {_IN_WORDS[stage]} a batch of {size} {'item' if size == 1 else 'items'}"
    try:
        notes = getattr(error, "__notes__", [])
        notes[:] = [each for each in notes if not _is_ours(each)]
        error.add_note(note)
    except Exception:  # noqa: BLE001  a class may refuse attributes
        return


def _is_ours(note: object) -> bool:
    return isinstance(note, str) and any(
        note.startswith(f"while {verb} a batch of ") for verb in _IN_WORDS.values()
    )


def is_async_stage(stage: Any) -> bool:
    """Whether a stage, which may be an object that is called, is `async def`."""
    return is_async_def(stage) or is_async_def(getattr(stage, "__call__", None))  # noqa: B004


def refuse_async(options: Options, *, is_async: bool, name: str) -> None:
    """Raise `TypeError` for a stage that is `async def`, where the batch function runs in a thread."""
    for stage in ("prepare", "finish"):
        if not is_async and is_async_stage(getattr(options, stage)):
            raise TypeError(
                f"{stage} is `async def`, but {name} runs in a thread: use batched.aio.dynamically with a "
                f"batch function that is `async def` too, or make {stage} a plain function"
            )


def signature_with(function: Any, options: Options, through: type | None = None) -> Any:
    """Return a stand-in with the parameters of the first stage of `function`, and the answer of the last.

    Of a method that is found `through` a class, the first parameter is its instance, whatever the stage is.
    """
    owner = getattr(function, "__self__", through)
    first = found(options.prepare, function, owner) if options.prepare is not None else function
    last = found(options.finish, function, owner) if options.finish is not None else function
    seen = signature_of(first)
    if through is not None:
        instance, *_ = signature_of(function).parameters.values()
        others = [each for each in seen.parameters.values() if each.name != instance.name]
        seen = seen.replace(parameters=[instance.replace(kind=instance.POSITIONAL_ONLY), *others])

    def stand_in() -> None:
        """Have a signature."""

    try:
        answer = signature_of(last).return_annotation
    except (TypeError, ValueError):
        answer = seen.empty
    stand_in.__signature__ = seen.replace(return_annotation=answer)  # type: ignore[attr-defined]
    return stand_in
