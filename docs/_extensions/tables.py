"""Markdown that is made from the code, so that no page repeats it: options, members, figures, metrics.

A page has a fence such as "{generated} option batch_size": the text that the function `option` returns
stands in its place when the site is built. Nothing here needs Sphinx, so tests ask for the same text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from textwrap import dedent
from typing import Any

import source

from batched import Workers
from batched._core.option_checks import SharedByFunctions
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
    """Return the section of an option up to its text; when to set it, and how, stands on the page."""
    for cls in OPTIONS:
        for row in fields(cls):
            if row.name == name:
                facts = " ".join(_facts(row, cls))
                return f"(option-{name})=\n### `{name}`\n\n{facts}\n\n{row.metadata['text']}"
    raise LookupError(f"there is no option {name!r}")


def _facts(row: Field[Any], cls: type[Any]) -> Iterator[str]:
    default = "the function's name" if row.name == "name" else f"`{row.default!r}`"
    kind = row.type.replace(SharedByFunctions.__name__, "batched.Workers")
    yield f"Default {default}, type `{kind}`."
    if cls is CallOptions:
        yield "Set with `fn.options`."
    elif row.name in live_options(cls):
        yield "`fn.configure` can change it."


# -- public names -----------------------------------------------------------------------------------------


def api(name: str, *members: str) -> str:
    """Return the description of a public name and of its members, from signatures and docstrings.

    "*" stands for all attributes with a docstring, in the order of the class.
    """
    return "\n\n".join(_described(name, members, []))


def entry(name: str, *members: str) -> str:
    """Return a heading, then the description of a public name: the list of contents has the heading only."""
    place, _, attribute = name.rpartition(".")
    heading = name
    if isinstance(owner := source.public(place), type):
        heading = "fn(item)" if attribute == "__call__" else f"{HELD_AS.get(owner, 'fn')}.{attribute}"
    return "\n\n".join([f"### `{heading}`", *_described(name, members, NOT_IN_CONTENTS)])


def note(name: str) -> str:
    """Return the description of a public name that stands in no list of contents."""
    return "\n\n".join(_described(name, (), NOT_IN_CONTENTS))


HELD_AS: dict[type[Any], str] = {Workers: "workers"}
"""What stands in headings before the names of methods, where it is not a function."""
NOT_IN_CONTENTS = [":no-contents-entry:"]


def _described(name: str, members: tuple[str, ...], about: list[str]) -> Iterator[str]:
    told = source.public(name)
    place, _, attribute = name.rpartition(".")
    owner = source.public(place)
    if isinstance(owner, type):
        module = place.rpartition(".")[0]
        yield _member(owner, attribute, f"{owner.__name__}.", [f":module: {module}", *about])
        return
    where = [f":module: {place}", *about]
    if found := source.alias(attribute):
        value, text = found
        yield _directive("py:type", [attribute], [*where, f":canonical: {value}"], text)
    elif inspect.isfunction(told):
        yield _directive("py:function", [attribute + source.signature(told)], where, _markdown(told))
    elif isinstance(told, type):
        kind = "py:exception" if issubclass(told, BaseException) else "py:class"
        made = vars(told).get("__init__")
        is_made = made is not None and (bool(made.__doc__) or members == ("collect",))
        takes = source.signature(made).removesuffix(" -> None") if is_made else ""
        how = [_markdown(made)] if is_made and made.__doc__ else []
        names = [name for each in members for name in (source.documented(told) if each == "*" else [each])]
        text = "\n\n".join([_markdown(told), *how, *(_member(told, each, "", about) for each in names)])
        yield _directive(kind, [attribute + takes], where, text)
    else:
        yield _directive("py:data", [attribute], where, source.below(type(told).__module__, attribute))


def _member(cls: type[Any], name: str, before: str, about: list[str]) -> str:
    attributes = source.documented(cls)
    if name in attributes:
        written, text = attributes[name]
        return _directive("py:attribute", [before + name], [*about, f":type: {written}"], text)
    found = inspect.getattr_static(cls, name)
    if isinstance(found, property):
        returns = inspect.signature(found.fget).return_annotation if found.fget else ""
        return _directive("py:property", [before + name], [*about, f":type: {returns}"], _markdown(found))
    if inspect.iscoroutinefunction(found):
        about = [*about, ":async:"]
    text = _markdown(_documented(cls, name))
    if "__signature__" in vars(found):  # from the table of options
        return _directive("py:method", [before + name + source.signature(found)], about, text)
    written = source.overloads(cls, name)
    return _directive("py:method", [before + name + each for each in written], about, text)


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
    text = EXAMPLE.sub(lambda found: f"```python\n{dedent(found[0]).rstrip()}\n```\n\n", text)
    if hasattr(told, "__signature__"):
        names = [each for each in inspect.signature(told).parameters if each not in {"func", "self"}]
        listed = ", ".join(f"`{name}`" for name in names)
        text = re.sub(
            r"^Args:\n(?: +.*\n?)+", f"[Options](options.md): {listed}.\n", text, flags=re.MULTILINE
        )
    text = re.sub(
        r"^(?:Args|Raises):\n", lambda title: f"**{TITLES[title[0].strip()]}**\n\n", text, flags=re.MULTILINE
    )
    return re.sub(r"^ {4}(\*{0,2}\w+): (?=\S)", r"- `\1`: ", text, flags=re.MULTILINE)


EXAMPLE = re.compile(r"(?<=:\n\n)(?: {4}.*\n|\n)+")
"""What is indented in a docstring behind a colon."""


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


TABLES: dict[str, Callable[..., str]] = {
    "api": api,
    "counts": counts,
    "entry": entry,
    "metrics": metrics,
    "note": note,
    "option": option,
}
