"""The other side of the pages about other libraries: each program named `before.py` runs too.

Those of aiodataloader and of the queue loop are run with their page.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.page import Page, check, end, start
from tests.kit.ports import free_port
from tests.kit.script import ROOT

Written = tuple[Path, int]
"""A folder with the programs of a page, and the port that they name."""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Written]:
    """Write the programs of a page into a folder."""

    def write(name: str) -> Written:
        port = free_port()
        Page(ROOT / "docs" / "coming-from" / f"{name}.md").write_files(tmp_path, {"8000": str(port)})
        return tmp_path, port

    return write


def installed(requirement: str, folder: Path) -> dict[str, str]:
    """Have pip put a library into a folder; return the environment in which it is found first."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), requirement]
    subprocess.run(command, check=True, timeout=150, capture_output=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(folder)}


def answered(
    command: str, files: Written, environment: dict[str, str], path: str, question: object
) -> object:
    """Start a server, ask it once, and end it and its workers; return what it has answered."""
    httpx = pytest.importorskip("httpx")
    psutil = pytest.importorskip("psutil")
    folder, port = files
    server = start(command, port, folder, environment)
    try:
        return httpx.post(f"http://127.0.0.1:{port}/{path}", json=question, timeout=30).json()
    finally:
        workers = psutil.Process(server.pid).children(recursive=True)
        end(server)
        for worker in workers:  # LitServe leaves some of them running
            if worker.is_running():
                worker.kill()


@pytest.mark.pages
@pytest.mark.timeout(200)
def test_a_program_for_batched_0_1_5_runs(written: Callable[[str], Written], tmp_path: Path) -> None:
    """With that library, which has our very name."""
    folder, _ = written("batched-0.1.5")
    environment = installed("batched==0.1.5", tmp_path / "others")
    check([sys.executable, "before.py"], folder, environment, 30)


@pytest.mark.pages
@pytest.mark.timeout(300)
def test_litserve_answers_as_our_side_does(written: Callable[[str], Written], tmp_path: Path) -> None:
    """The request is that of the page."""
    environment = installed("litserve", tmp_path / "others")
    answer = answered("python before.py", written("litserve"), environment, "predict", {"text": "hello"})
    assert answer == {"length": 5}


@pytest.mark.pages
@pytest.mark.timeout(300)
def test_bentoml_answers_as_our_side_does(written: Callable[[str], Written], tmp_path: Path) -> None:
    """The command and the request are those of the page."""
    files = written("bentoml")
    environment = installed("bentoml", tmp_path / "others")
    environment |= {"BENTOML_HOME": str(tmp_path / "home"), "BENTOML_DO_NOT_TRACK": "true"}
    command = f"python -m bentoml serve before:Embedding --port {files[1]}"
    answer = answered(command, files, environment, "embed", {"texts": ["one", "three"]})
    assert answer == [3, 5]


@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.parametrize("side", ["before", "after"])
def test_both_sides_answer_in_a_replica_of_ray(written: Callable[[str], Written], side: str) -> None:
    """Eight requests at once."""
    folder, port = written("ray-serve")
    Path(folder, "ask.py").write_text(
        f"""
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve

from {side} import app

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={{"host": "127.0.0.1", "port": {port}}})
serve.run(app)
urls = ["http://127.0.0.1:{port}/?text=hello"] * 8
with ThreadPoolExecutor(8) as callers:
    answers = list(callers.map(lambda url: urlopen(url, timeout=30).read(), urls))
assert answers == [b"5"] * 8, answers
serve.shutdown()
ray.shutdown()
""",
        "utf-8",
    )
    paths = os.pathsep.join([str(folder), str(ROOT)])
    check([sys.executable, "ask.py"], folder, {**os.environ, "PYTHONPATH": paths}, 240)
