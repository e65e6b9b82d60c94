"""The page of six lines has no more of them, and a service with these does what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.page import PATH, Page
from tests.kit.ports import free_port
from tests.kit.script import ROOT
from tests.kit.service import PATIENCE_S, until

fcntl = pytest.importorskip("fcntl")
pytestmark = [pytest.mark.pages, pytest.mark.timeout(200)]

PAGE = Page(ROOT / "docs" / "how-to" / "six-lines.md")
APP = next(block.text for block in PAGE.blocks if block.name == "app.py")
COMMAND = next(block.text for block in PAGE.blocks if block.name == "server")
MODEL = re.compile(r"time\.sleep\(0\.02\).*")
AT_GATE = "__import__('fcntl').flock(open('gate'), 2)"


class Service:
    """The service of the page: its function waits at a gate, and its queue is short."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.gate.touch()
        assert MODEL.search(APP)
        short = MODEL.sub(AT_GATE, APP).replace("max_queue_size=1024", "max_queue_size=1, batch_size=1")
        (folder / "app.py").write_text(short)
        port = free_port()
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PATH": PATH}
        environment["OTEL_BSP_SCHEDULE_DELAY"] = "50"  # milliseconds
        with self.log.open("w") as log:
            command = COMMAND.replace("\\\n", "").replace("8000", str(port)).split()
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        until(lambda: "running on" in self.log.read_text())
        import httpx

        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False)

    def ask(self, text: str, **headers: str) -> Any:
        """Return the answer for a text."""
        return self.http.get("/embed", params={"text": text}, headers=headers)

    def figure(self, metric: str) -> float:
        """Return a figure of its metrics."""
        page = self.http.get("/metrics/").text
        found = re.search(rf'^batched_{metric}{{name="embed"}} (.*)$', page, re.MULTILINE)
        return float(found[1]) if found else 0.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The service, until the test ends."""
    assert PAGE.lacks == []
    service = Service(tmp_path)
    yield service
    service.http.close()
    service.process.kill()
    service.process.wait(PATIENCE_S)


def test_it_is_six_lines_beside_the_handler() -> None:
    """Imports, the function and its handler are there in any case."""
    after_the_handler = APP.partition("return await embed.acall(text)\n")[2]
    assert len([line for line in after_the_handler.splitlines() if line.strip()]) == 6


def test_all_that_is_promised_is_there(service: Service) -> None:
    """Metrics, logs, traces, health, overload; and what was accepted is answered after SIGTERM."""
    assert service.ask("first").status_code == 200
    until(lambda: '"name": "batch embed"' in service.log.read_text())
    with ThreadPoolExecutor() as clients:
        with service.gate.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            runs = clients.submit(service.ask, "runs")
            until(lambda: service.figure("running_items") == 1)
            late = service.ask("late", **{"x-deadline-ms": "20"})
            assert (late.status_code, late.json()["status"]) == (504, 504)
            waits = clients.submit(service.ask, "waits")
            until(lambda: service.figure("waiting_items") == 1)
            full = service.ask("full")
            assert (full.status_code, full.headers["content-type"]) == (429, "application/problem+json")
            assert service.http.get("/health").status_code == 200
            service.process.send_signal(signal.SIGTERM)
            until(lambda: "Shutting down" in service.log.read_text())
        assert [each.result(PATIENCE_S).status_code for each in (runs, waits)] == [200, 200]
    service.process.wait(PATIENCE_S)
    log = service.log.read_text()
    assert len(re.findall("DEBUG:batched.batches:batch_function=embed batch_size=1 ", log)) == 3
    assert "WARNING:batched:/embed was answered with 429" in log
    assert "Traceback" not in log
