"""Examples in docstrings are run too."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent
from urllib.request import urlopen

import pytest

from tests.kit.script import PACKAGE, ROOT

EXAMPLE = re.compile(r"(?<=:\n\n)(?: {4}.*\n|\n)+")


@cache
def examples() -> list[tuple[str, str]]:
    """Return each example with the name of its module: what is indented in a docstring, behind a colon."""
    found: list[tuple[str, str]] = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                assert ">>>" not in text, path
                name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
                found += [(name, dedent(each)) for each in EXAMPLE.findall(text + "\n")]
    return found


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("_api.lists", "batched"),
        ("aio.__init__", "batched"),
        ("inference", "numpy"),
        ("aio.inference", "numpy"),
    ],
)
def test_the_example_of_a_decorator_runs(module: str, needs: str) -> None:
    """As `help` shows it."""
    pytest.importorskip(needs)
    (example,) = [text for name, text in examples() if name == module]
    exec(example, {"__name__": "example"})


def test_each_example_is_run() -> None:
    """Another needs a test here that runs it."""
    names = ["_api.lists", "aio.__init__", "aio.inference", "inference", "prometheus"]
    assert sorted(name for name, _ in examples()) == names


def test_each_worker_of_gunicorn_serves_a_page_on_a_port_of_its_own() -> None:
    """The lines of `batched.prometheus` and of the page on metrics, which are the same."""
    pytest.importorskip("prometheus_client")
    (example,) = [text for name, text in examples() if name == "prometheus"]
    page = Path(ROOT, "docs", "reference", "metrics.md").read_text("utf-8")
    (block,) = re.findall(r"```python gunicorn.conf.py\n(.*?)```", page, re.DOTALL)
    assert ast.dump(ast.parse(example)) == ast.dump(ast.parse(block))
    if [int(part) for part in version("prometheus-client").split(".")[:2]] < [0, 19]:
        pytest.skip("older ones do not return their server, and this test could not end it")

    configuration: dict[str, object] = {}
    exec(example, configuration)
    served = [configuration["post_fork"](None, None) for _ in range(2)]
    try:
        ports = {server.server_port for server, _ in served}
        assert len(ports) == 2
        for port in ports:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                assert b"# HELP batched_batchers Live batchers" in answer.read()
    finally:
        for server, thread in served:
            server.shutdown()
            server.server_close()
            thread.join(20)
