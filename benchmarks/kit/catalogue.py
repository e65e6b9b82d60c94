"""All benchmarks: found by their files, so that one more is one more file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

__all__ = ["CORE", "FOLDERS", "Benchmark", "catalogue", "choose"]

FOLDERS = ("overhead", "load", "simulated", "model", "http", "flood", "ray", "pages")
CORE = ("overhead", "load")  # what runs when nothing is named: it needs no model, server or cluster
_HOME = Path(__file__).parents[1]
_ROWS, _PROGRAM = "ROWS", "PROGRAM"  # a benchmark's file defines one of these


@dataclass(frozen=True)
class Benchmark:
    """One file of benchmarks. `about` is its first line: what it measures, and beside what."""

    folder: str
    name: str
    about: str
    is_program: bool = False  # it has options of its own, and more than rows

    def load(self) -> ModuleType:
        """Import it, and with it what it needs."""
        return import_module(f"benchmarks.{self.folder}.{self.name.replace('-', '_')}")

    def __str__(self) -> str:
        return f"{self.folder} {self.name}"


@cache
def catalogue() -> tuple[Benchmark, ...]:
    """Return all benchmarks. None is imported: what they need may not be installed."""
    return tuple(one for folder in FOLDERS for one in _in(folder))


def _in(folder: str) -> Iterator[Benchmark]:
    for file in sorted((_HOME / folder).glob("*.py")):
        tree = ast.parse(file.read_text())
        names = {name.id for part in tree.body for name in _assigned(part)}
        if names & {_ROWS, _PROGRAM}:
            about = (ast.get_docstring(tree) or "").partition("\n")[0]
            yield Benchmark(folder, file.stem.replace("_", "-"), about, _PROGRAM in names)


def _assigned(part: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(part, ast.Assign):
        yield from (target for target in part.targets if isinstance(target, ast.Name))


def choose(words: Iterable[str]) -> list[Benchmark]:
    """Return the benchmarks that are named: by folder, by name, or by a folder and names in it.

    Raises `ValueError` for a word that names none.
    """
    known = catalogue()
    asked = list(words) or list(CORE)
    for word in asked:
        if word not in FOLDERS and not any(one.name == word for one in known):
            raise ValueError(f"no benchmark {word!r}; --list shows all")
    named = [one for one in known if one.name in asked]
    whole = set(asked) & set(FOLDERS) - {one.folder for one in named}
    return [one for one in known if one in named or one.folder in whole]
