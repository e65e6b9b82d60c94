"""The hooks of features: their number, the features that have each, and what the page of the house says."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from batched import _features
from batched._core import hooks
from batched._core.hooks import HOOKS, Feature
from tests.kit.script import ROOT

MOST = 12
"""One hook more takes a reason: each is a place where the walk of a call may be left, and has to be known."""

HOUSE = (ROOT / "docs/explanation/architecture.md").read_text()


def features_of(path: Path) -> list[type[Feature]]:
    """Return the features that a module defines."""
    module = importlib.import_module(f"batched._features.{path.stem}")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, Feature) and kind.__module__ == module.__name__]


PATHS = {
    kind: path for path in sorted(Path(_features.__path__[0]).glob("[!_]*.py")) for kind in features_of(path)
}


def said(path: Path) -> set[str]:
    """Return the names that the feature of a file says it has, at any time.

    They are what `have` is given, by name or not, and what tuples of texts alone have: those are hooks.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), "have"), found) | ast.Tuple([_, *_] as found):
                texts = [each.value for each in found if isinstance(each, ast.Constant)]
                if len(texts) == len(found) and all(isinstance(text, str) for text in texts):
                    names.update(texts)
    return names


def rows() -> list[tuple[str, set[str]]]:
    """Return the hooks of the table in the page of the house, and which features that says have each."""
    _, table = HOUSE.split("| hook | asked or told | which features have it |\n|---|---|---|\n")
    lines = table.split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(hook.strip("`"), {*re.findall(r"`(\w+)`", features)}) for hook, _, features in cells]


def test_features_are_found() -> None:
    assert {kind.__name__ for kind in PATHS} >= {"FitsMemory", "Isolation", "Waiting", "WithDeadlines"}
    assert said(PATHS[next(kind for kind in PATHS if kind.__name__ == "WithDeadlines")]) >= {"door", "room"}


@pytest.mark.parametrize("kind", PATHS, ids=lambda kind: kind.__name__)
def test_a_feature_has_at_any_time_hooks_that_there_are_and_a_method_for_each(kind: type[Feature]) -> None:
    """And no method of such a name that it never has as a hook: nothing would ask it."""
    names = said(PATHS[kind])
    assert names >= {*kind.hooks}
    assert names <= {*HOOKS}
    assert names == {name for name in HOOKS if callable(getattr(kind, name, None))}


def test_the_table_of_rooms_names_the_module_of_each_feature() -> None:
    """A feature that the page lacks is one that a reader does not look for."""
    rows = HOUSE.partition("| `_features`: what takes part |")[2].partition("| `_core`:")[0]
    assert {*re.findall(r"\w+", rows)} >= {path.stem for path in PATHS.values()}


def test_there_are_few_hooks() -> None:
    assert len({*HOOKS}) == len(HOOKS) <= MOST


def test_the_table_of_the_house_has_each_hook_and_the_features_that_have_it() -> None:
    """And no others."""
    assert rows() == [
        (hook, {kind.__name__ for kind, path in PATHS.items() if hook in said(path)}) for hook in HOOKS
    ]


def test_the_table_in_the_module_of_hooks_has_each_hook_with_what_it_is_given() -> None:
    """By the names that methods have for it, or the same behind a line."""
    found = re.findall(r"^\| `(\w+)\(([\w, ]*)\)`", str(hooks.__doc__), re.MULTILINE)
    assert [name for name, _ in found] == [*HOOKS]
    for name, given in found:
        for kind in PATHS:
            if method := getattr(kind, name, None):
                count = method.__code__.co_argcount
                has = [each.lstrip("_") for each in method.__code__.co_varnames[1:count]]
                assert has == given.split(", "), f"{kind.__name__}.{name}"
