"""The examples for Ray, run as their readers run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from tests.kit.gate import PATIENCE_S
from tests.kit.ports import free_port
from tests.kit.ray_probe import STARTUP_S
from tests.kit.script import ROOT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(280),  # the first test starts Ray, and the examples start others
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's, of what it imports
]


EXAMPLES = ROOT / "examples"


def processes_of(session: int) -> list[psutil.Process]:
    """Return the processes of a session, whose parents may have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


@pytest.fixture
def example(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start an example as its readers do; at the end it has stopped, and Ray with it."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-u", EXAMPLES / name, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                env={**os.environ, **environment},
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    left = []
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        left += psutil.wait_procs(processes_of(process.pid), timeout=PATIENCE_S)[1]
    for orphan in left:
        orphan.kill()
    assert not left


def test_the_serving_example_answers_curl_and_its_own_questions(
    example: Callable[..., subprocess.Popen[str]],
) -> None:
    """It adds and writes for many at once, prints the batches, and serves on until it is interrupted."""
    address = free_port()
    process = example("ray_serve.py", "--stay", "--port", str(address))
    output: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if line.startswith("curl --no-buffer"):
                ready.set()
        ready.set()

    def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--max-time", str(PATIENCE_S), *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(STARTUP_S), output
        base = f"http://127.0.0.1:{address}"
        assert '"value":42' in curl(f"{base}/add?number=41"), output
        assert curl("--no-buffer", f"{base}/write?prompt=the+fox") == " runs over the lazy dog."
        bad = [
            curl("--write-out", "%{http_code}", f"{base}/{path}")
            for path in ("add?number=x", f"add?number={2**63}", "write")
        ]
        assert [answer.splitlines()[1] for answer in bad] == ["400"] * 3
        assert bad[0].startswith("number must be an integer, got 'x'")
        assert bad[1].startswith("number must be below 1,000,000,000,000,000,000, got 9223372036854775808")
        assert bad[2].startswith("prompt must be some text")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STARTUP_S)
        reader.join(PATIENCE_S)
    text = "".join(output)
    assert process.returncode == 0, text
    nine = "1, 2, 3, 4, 5, 6, 7, 8, 9"
    for way in ("nine numbers over HTTP", "nine numbers by handle", "one list by handle"):
        assert f"{way}: {nine}\n" in text
    sizes = [int(size) for line in output if "batches of" in line for size in line.split("of ")[1].split(",")]
    assert sum(sizes) == 27
    assert max(sizes) == 4
    assert "the fox |  runs over the lazy dog." in text
    assert "All answers verified" in text


def test_the_data_example_embeds_partitions_and_finds_them_again(
    example: Callable[..., subprocess.Popen[str]],
) -> None:
    """Two actors share the data set, and what they made is what the model makes of each sentence alone."""
    process = example("ray_data.py", "--sentences", "40", "--partitions", "4")
    output, _ = process.communicate(timeout=STARTUP_S)
    assert process.returncode == 0, output
    assert "40 sentences embedded" in output
    actors = [line for line in output.splitlines() if line.startswith("  actor ")]
    assert sum(int(line.split(": ")[1].split()[0]) for line in actors) == 40
    assert "40 queries answered online" in output
    assert "All 40 vectors verified" in output
