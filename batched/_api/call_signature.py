"""The signature with which a decorated function is called: with one item or a list, as `help` shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, MutableSequence, Sequence
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from batched._collate.columns import is_setting
from batched._core.options import ArrayOptions, Options, has_stages
from batched._core.parameters import signature_of
from batched._parts.stages import signature_with

_KINDS = (list, Sequence, MutableSequence, Collection, Iterable)
_WRITTEN = re.compile(
    r"(?:\w+\.)*(?:list|List|Sequence|MutableSequence|Collection|Iterable|tuple|Tuple)"
    r"\[(?P<item>.*?)(?:, *\.\.\.)?\](?P<optional> *\| *None)?",
    re.DOTALL,
)
_BESIDES = ("acall", "submit", "map", "amap", "stream", "astream", "options", "stats", "explain", "configure")


class CallSignature(Signature):
    """A signature that says, where it is shown, what a decorated function has besides a call."""

    __slots__ = ("besides",)

    besides: str

    if hasattr(Signature, "format"):  # from Python 3.13 on

        def format(self, **how: Any) -> str:
            """Return the text that `help` shows."""
            text: str = super().format(**how)  # type: ignore[misc]
            return text + getattr(self, "besides", "")

    else:

        def __str__(self) -> str:
            return super().__str__() + getattr(self, "besides", "")


class LaterSignature(Signature):
    """A signature that is read when it is first looked at: those of most functions never are."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Signature]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Any:
        """Fill in what a signature has in its slots, which are empty at first."""
        if name not in Signature.__slots__:
            raise AttributeError(name)
        seen = self._read()
        super().__init__([*seen.parameters.values()], return_annotation=seen.return_annotation)
        return getattr(self, name)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with other parameters, as `inspect` makes of that of a bound method."""
        return Signature([*self.parameters.values()], return_annotation=self.return_annotation).replace(
            **changes
        )


class _Written(str):
    """An annotation that is a text, shown without quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def signature_of_calls(
    function: Any,
    options: Options,
    has: Callable[[str], bool],
    through: type | None = None,
) -> Signature:
    """Return how `function`, decorated, is called; `ValueError` or `TypeError` if it has no signature.

    `has` says whether what is called has an attribute. A method may be found `through` a class.
    """
    if has_stages(options):
        function = signature_with(function, options, through)
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001  a name that is there for type checkers only
        signature = signature_of(function)
    parameters = [*signature.parameters.values()]
    answer = signature.return_annotation
    if not isinstance(options, ArrayOptions):
        parameters = [
            each.replace(annotation=_for_callers(each.annotation, many=not options.streams))
            for at, each in enumerate(parameters)
            if at == 0 or not is_setting(each)
        ]
        answer = answer if options.streams else _for_callers(answer)
    seen = CallSignature(parameters, return_annotation=answer)
    lacks = "map" if options.streams else "stream"
    ways = [way for way in _BESIDES if has(way) and not way.endswith(lacks)]
    seen.besides = f"  # also .{', .'.join(ways)}"
    return seen


def signature_of_way(
    way: Callable[..., Any], function: Any, options: Options, through: type | None
) -> Signature:
    """Return the signature of `acall` or another way to call `function`, as a class has it: `self` first."""
    own = inspect.signature(way)
    plain = getattr(function, "__func__", function)  # of class and static methods
    try:
        seen = signature_of_calls(plain, options, lambda _: False, through)
    except (TypeError, ValueError):  # a function in C, or a stage by its name, which only an instance has
        return own
    parameters = [*seen.parameters.values()]
    if not parameters or parameters[0].name not in {"self", "cls"}:
        parameters.insert(0, Parameter("self", Parameter.POSITIONAL_ONLY))
    is_async = inspect.iscoroutinefunction(way)
    return Signature(
        parameters, return_annotation=seen.return_annotation if is_async else own.return_annotation
    )


def _for_callers(annotation: Any, *, many: bool = True) -> Any:
    """Return the annotation of one item, or of a list of them, where that of the batch function is a list."""
    if isinstance(annotation, str):
        written = _WRITTEN.fullmatch(annotation)
        if written is None:
            return annotation
        item = written["item"]
        return _Written((f"{item} | list[{item}]" if many else item) + (written["optional"] or ""))
    kinds = get_args(annotation)
    if get_origin(annotation) is Annotated:  # with what is for a web framework, say
        return Annotated[_for_callers(kinds[0], many=many), *kinds[1:]]
    if get_origin(annotation) in {Union, UnionType}:
        return reduce(or_, [_for_callers(kind, many=many) for kind in kinds])
    is_list = get_origin(annotation) in _KINDS or (get_origin(annotation) is tuple and kinds[1:] == (...,))
    if not is_list or not kinds:
        return annotation
    return _one_or_many(kinds[0]) if many else kinds[0]


def _one_or_many(item: Any) -> Any:
    """Return the type of one item or a list of them; an error among results is raised, so it is no result."""
    if get_origin(item) in {Union, UnionType}:
        results = [each for each in get_args(item) if not _is_error(each)]
        item = reduce(or_, results) if results else item
    try:
        return item | list[item]
    except TypeError:  # an item may be anything that stands there
        return Union[item, list[item]]  # noqa: UP007


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and kind is not NoneType and issubclass(kind, BaseException)
