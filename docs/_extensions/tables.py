"""Markdown that is made from the code, so that no page repeats it: options, members, figures, metrics.

A page has a fence such as "{generated} option batch_size": the text that the function `option` returns
stands in its place when the site is built. Nothing here needs Sphinx, so tests ask for the same text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from typing import Any

import source

from batched._core.options import ArrayOptions, CallOptions, Options, live_options
from batched._policy.lengths import Choice
from batched._policy.window import StartReason

FENCE = re.compile(r"^```\{generated\} (?P<asked>[^\n]+)\n```$", re.MULTILINE)
OPTIONS: tuple[type[Any], ...] = (Options, ArrayOptions, CallOptions)
TITLES = {"Args:": "Arguments:", "Raises:": "Raises:"}
COUNTS: dict[str, type[Any]] = {kind.__name__: kind for kind in (StartReason, Choice)}


def generated(text: str) -> str:
    """Return the text of a page with its tables."""

    def replaced(fence: re.Match[str]) -> str:
        name, *arguments = fence["asked"].split()
        return TABLES[name](*arguments)

    return FENCE.sub(replaced, text)


# -- options ----------------------------------------------------------------------------------------------


def option(name: str) -> str:
    """Return the section of an option up to its text: what follows, when to set it and how, is on the page."""
    for cls in OPTIONS:
        for row in fields(cls):
            if row.name == name:
                facts = " ".join(_facts(row, cls))
                return f"(option-{name})=\n### `{name}`\n\n{facts}\n\n{row.metadata['text']}"
    raise LookupError(f"there is no option {name!r}")


def _facts(row: Field[Any], cls: type[Any]) -> Iterator[str]:
    default = "the function's name" if row.name == "name" else f"`{row.default!r}`"
    yield f"Default {default}, type `{row.type}`."
    if cls is CallOptions:
        yield "Set with `fn.options`."
    elif row.name in live_options(cls):
        yield "`fn.configure` can change it."


# -- public names -----------------------------------------------------------------------------------------


def api(name: str, *members: str) -> str:
    """Return the description of a public name and of its members, from signatures and docstrings.

    "*" stands for all attributes with a docstring, in the order of the class.
    """
    told = source.public(name)
    module, _, attribute = name.rpartition(".")
    where = [f":module: {module}"]
    if found := source.alias(attribute):
        value, text = found
        return _directive("py:type", [attribute], [*where, f":canonical: {value}"], text)
    if inspect.isfunction(told):
        return _directive("py:function", [attribute + source.signature(told)], where, _markdown(told))
    if not isinstance(told, type):
        return _directive("py:data", [attribute], where, source.below(type(told).__module__, attribute))
    kind = "py:exception" if issubclass(told, BaseException) else "py:class"
    takes = (
        source.signature(told.__init__).removesuffix(" -> None")
        if "__init__" in vars(told) and members == ("collect",)
        else ""
    )
    names = [*source.documented(told)] if members == ("*",) else members
    text = "\n\n".join([_markdown(told), *(_member(told, each) for each in names)])
    return _directive(kind, [attribute + takes], where, text)


def _member(cls: type[Any], name: str) -> str:
    attributes = source.documented(cls)
    if name in attributes:
        written, text = attributes[name]
        return _directive("py:attribute", [name], [f":type: {written}"], text)
    found = inspect.getattr_static(cls, name)
    if isinstance(found, property):
        returns = inspect.signature(found.fget).return_annotation if found.fget else ""
        return _directive("py:property", [name], [f":type: {returns}"], _markdown(found))
    about = [":async:"] if inspect.iscoroutinefunction(found) else []
    if "__signature__" in vars(found):  # from the table of options
        return _directive("py:method", [name + source.signature(found)], about, _markdown(found))
    written = [name + each for each in source.overloads(cls, name)]
    return _directive("py:method", written, about, _markdown(_documented(cls, name)))


def _documented(cls: type[Any], name: str) -> Any:
    """Return the method of the nearest base that has a docstring of it."""
    return next(vars(base)[name] for base in cls.__mro__ if name in vars(base) and vars(base)[name].__doc__)


def _directive(kind: str, signatures: list[str], about: list[str], text: str) -> str:
    inside = re.findall(r"^`{3,}", text, re.MULTILINE)
    fence = "`" * (1 + max(map(len, inside), default=2))
    *others, last = signatures
    blocks = ["\n".join([f"{fence}{{{kind}}} {each}", ":no-index:", *about, fence]) for each in others]
    return "\n\n".join([*blocks, "\n".join([f"{fence}{{{kind}}} {last}", *about, "", text.strip(), fence])])


# -- docstrings -------------------------------------------------------------------------------------------


def _markdown(told: Any) -> str:
    """Return a docstring as Markdown: its sections become lists. Rows of options are left to their page."""
    text = inspect.getdoc(told) or ""
    if hasattr(told, "__signature__"):
        text = re.sub(
            r"^Args:\n(?: +.*\n?)+",
            "Each of the [options](options.md) has a section of its own.\n",
            text,
            flags=re.MULTILINE,
        )
    text = re.sub(
        r"^(?:Args|Raises):\n", lambda title: f"**{TITLES[title[0].strip()]}**\n\n", text, flags=re.MULTILINE
    )
    return re.sub(r"^ {4}(\w+): (?=\S)", r"- `\1`: ", text, flags=re.MULTILINE)


# -- figures ----------------------------------------------------------------------------------------------


def counts(kind: str) -> str:
    """Return a table of the names that a dict of counts has, and what each means."""
    rows = [f"| `{value}` | {text} |" for value, text in source.documented(COUNTS[kind]).values()]
    return "\n".join(["| name | meaning |", "|---|---|", *rows])


def metrics() -> str:
    """Return a table of all metrics, as they stand on a page of Prometheus."""
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *_metrics()])


def _metrics() -> Iterator[str]:
    from batched.prometheus import Collector  # noqa: PLC0415  the other tables need no library

    for family in Collector(registry=None).describe():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # noqa: SLF001  no public way
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation}. |"


TABLES: dict[str, Callable[..., str]] = {"api": api, "counts": counts, "metrics": metrics, "option": option}
