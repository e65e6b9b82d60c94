"""What the code says of itself: signatures as they are written, and the docstrings of fields.

Signatures are taken from the source where type checkers read them: an overload says more than `*args`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from importlib import import_module
from inspect import Parameter
from itertools import pairwise
from textwrap import dedent
from typing import Any, cast

from batched.typing import StreamingFunction

OF_ALIASES = ("batched._core.options", "batched._core.option_checks", "batched.inference")


STREAMS = {"stream": StreamingFunction, "astream": StreamingFunction}
"""Methods of which another class says the types, as only some functions have them."""
FEW = 4
BY_NAME = {kind: kind for kind in type(Parameter.KEYWORD_ONLY)} | {
    Parameter.POSITIONAL_ONLY: Parameter.POSITIONAL_OR_KEYWORD
}
"""A decorator is shown without the mark of a positional parameter."""


def public(name: str) -> Any:
    """Return what has the public name: a module, or what a module or a class has."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        place, _, attribute = name.rpartition(".")
        return getattr(public(place), attribute)


def signature(function: Callable[..., Any]) -> str:
    """Return the signature that `inspect` gives, with the types as they are written in the source.

    More than a few options are `**options`: the page of options has their types.
    """
    found = inspect.signature(function)
    shown = [each for each in found.parameters.values() if each.name != "self"]
    if hasattr(function, "__signature__"):
        shown = [Parameter(each.name, BY_NAME[each.kind], default=each.default) for each in shown]
        if len(shown) > FEW:
            shown = [each for each in shown if each.name == "func"]
            shown.append(Parameter("options", Parameter.VAR_KEYWORD))
    returns = found.return_annotation
    return f"({', '.join(_with_marks(shown))})" + (f" -> {returns}" if isinstance(returns, str) else "")


def _with_marks(parameters: list[Parameter]) -> Iterator[str]:
    """Yield the parameters as they are written, with `/` and `*` between their kinds."""
    for index, each in enumerate(parameters):
        before = parameters[index - 1].kind if index else None
        if before is Parameter.POSITIONAL_ONLY and each.kind is not before:
            yield "/"
        if (
            each.kind is Parameter.KEYWORD_ONLY
            and before is not each.kind
            and before is not Parameter.VAR_POSITIONAL
        ):
            yield "*"
        stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
        written = "" if each.annotation is Parameter.empty else f": {each.annotation}"
        equals = " = " if written else "="
        default = "" if each.default is Parameter.empty else f"{equals}{_value(each.default)}"
        yield f"{stars}{each.name}{written}{default}"
    if parameters and parameters[-1].kind is Parameter.POSITIONAL_ONLY:
        yield "/"


def _value(default: object) -> str:
    if default is ...:
        return "..."
    if isinstance(default, int | float | str | None):
        return repr(default)
    return getattr(default, "__name__", "REGISTRY")


def overloads(cls: type[Any], name: str) -> list[str]:
    """Return the signatures of a method that the class, or the nearest base, declares for type checkers.

    Those of several are short, and that for one item is the first. Left out is what runs, and what only type
    checkers need, of which the type of the result says nothing, or the name of one of their own.
    """
    for base in STREAMS.get(name, cls).__mro__:
        if base.__module__.startswith("batched"):
            found = [node for node in _methods(base) if node.name == name]
            if len(found) == 1:
                return [_written(*found)]
            if found:
                return [_written(node, short=True) for node in reversed(found) if _is_for_readers(node)]
    return []


def _is_for_readers(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    returns = node.returns if node.decorator_list else None
    named = {each.id for each in ast.walk(returns) if isinstance(each, ast.Name)} if returns else {"Any"}
    return named.isdisjoint({"Any", "Row"})


def _methods(cls: type[Any]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the methods of the class, those in its `if TYPE_CHECKING:` too."""
    for node in _class(cls).body:
        for each in [*node.body, *node.orelse] if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                yield each


def _written(node: ast.FunctionDef | ast.AsyncFunctionDef, *, short: bool = False) -> str:
    """Return a signature as it is written, without what type checkers need and readers do not."""
    shown = deepcopy(node.args)
    taken = [*shown.posonlyargs, *shown.args]
    shown.posonlyargs, shown.args = [], [each for each in taken if each.arg != "self"]
    written = [default for default in shown.defaults if ast.unparse(default) != "..."]
    shown.defaults = written
    if short:
        shown.kwarg = None
    return f"({ast.unparse(shown)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def documented(cls: type[Any]) -> dict[str, tuple[str, str]]:
    """Return type and docstring of each attribute that the class, or a base, documents below it."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("batched"):
            body = _class(base).body
            inside = [
                node
                for each in body
                if isinstance(each, ast.FunctionDef) and each.name == "__init__"
                for node in each.body
            ]
            for statements in (body, inside):
                found |= _told(statements)
    return found


def _told(statements: list[ast.stmt]) -> dict[str, tuple[str, str]]:
    found = {}
    for node, after in pairwise(statements):
        match node, after:
            case ast.AnnAssign(target, written), ast.Expr(ast.Constant(str(text))):
                found[ast.unparse(target).removeprefix("self.")] = (
                    ast.unparse(written),
                    inspect.cleandoc(text),
                )
            case ast.Assign([target], ast.Constant(value)), ast.Expr(ast.Constant(str(text))):
                found[ast.unparse(target)] = (str(value), inspect.cleandoc(text))
    return found


@cache
def _class(cls: type[Any]) -> ast.ClassDef:
    (node,) = ast.parse(dedent(inspect.getsource(cls))).body
    return cast("ast.ClassDef", node)


def alias(name: str) -> tuple[str, str] | None:
    """Return the value and the docstring of a type alias; None for what is no alias."""
    for module in OF_ALIASES:
        for node in _body(module):
            match node:
                case ast.AnnAssign(ast.Name(target), ast.Name("TypeAlias"), value) if (
                    target == name and value
                ):
                    return ast.unparse(value), below(module, name)
    return None


def below(module: str, name: str) -> str:
    """Return the docstring below the assignment of a name; "" if there is none."""
    body = _body(module)
    for node, after in pairwise(body):
        match node, after:
            case (
                ast.AnnAssign(ast.Name(target)) | ast.Assign([ast.Name(target)]),
                ast.Expr(ast.Constant(str(text))),
            ) if target == name:
                return inspect.cleandoc(text)
    return ""


@cache
def _body(module: str) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(import_module(module))).body
