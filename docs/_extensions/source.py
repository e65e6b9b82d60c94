"""What the code says of itself: signatures as they are written, and the docstrings of fields.

Signatures are taken from the source where type checkers read them: an overload says more than `*args`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from inspect import Parameter
from itertools import pairwise
from textwrap import dedent
from typing import Any, cast

from batched._core.options import ArrayOptions, CallOptions, Options

OPTION_TYPES = {
    row.name: str(row.type) for kind in (Options, ArrayOptions, CallOptions) for row in fields(kind)
}
OPTION_TYPES |= {other: OPTION_TYPES[name] for other, name in ArrayOptions.other_names.items()}
OF_ALIASES = ("batched._core.options", "batched._core.option_checks", "batched.inference")


def public(name: str) -> Any:
    """Return what has the public name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def signature(function: Callable[..., Any]) -> str:
    """Return the signature that `inspect` gives, with the types as they are written in the source."""
    found = inspect.signature(function)
    shown = [_shown(each) for each in found.parameters.values() if each.name != "self"]
    returns = found.return_annotation
    return f"({', '.join(_with_marks(shown))})" + (f" -> {returns}" if isinstance(returns, str) else "")


def _shown(parameter: Parameter) -> Parameter:
    written = OPTION_TYPES.get(parameter.name, parameter.annotation)
    if parameter.name == "func":
        written = "Callable[..., Any] | None"
    return parameter.replace(annotation=written)


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
        default = "" if each.default is Parameter.empty else f" = {_value(each.default)}"
        yield f"{stars}{each.name}{written}{default}"
    if parameters and parameters[-1].kind is Parameter.POSITIONAL_ONLY:
        yield "/"


def _value(default: object) -> str:
    return (
        "..."
        if default is ...
        else repr(default)
        if isinstance(default, int | float | str | None)
        else "REGISTRY"
    )


def overloads(cls: type[Any], name: str) -> list[str]:
    """Return the signatures of a method that the class, or the nearest base, declares for type checkers."""
    for base in cls.__mro__:
        if base.__module__.startswith("batched"):
            found = [node for node in _methods(base) if node.name == name]
            if found:
                return [_written(node) for node in found if node.args.vararg is None or len(found) == 1]
    return []


def _methods(cls: type[Any]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the methods of the class, those in its `if TYPE_CHECKING:` too."""
    for node in _class(cls).body:
        for each in [*node.body, *node.orelse] if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                yield each


def _written(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg == "self":
            del group[0]
    return f"({ast.unparse(arguments)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


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
