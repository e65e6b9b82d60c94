"""Web processes that share one process of the model: `python -m ... APP WEB_SERVER PROCESSES PORT`.

It starts both, as a supervisor would: the model's with `python -m batched serve`, and those of uvicorn or
granian, which make the application. When it is told to end, the web processes end first.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import batched
from benchmarks.http.bare_app import BareApp
from benchmarks.http.models import COUNTS
from examples.embedding_service import create_app

_ADDRESS = "BENCHMARK_ADDRESS"  # the environment variable with the place of the model's process
_HERE = "benchmarks.http.with_web_processes"
_START_S = 60.0


def fastapi() -> Any:
    """Return the embedding service, without a model of its own."""
    app = create_app(_embed())
    gc.collect()  # as the example does
    gc.freeze()
    return app


def asgi() -> Any:
    """Return the application without a framework."""
    return BareApp(_embed().acall)


def _embed() -> Any:
    Path(f"{os.environ[COUNTS]}-{os.getpid()}").touch()  # the load begins when all web processes are there
    return batched.connect(os.environ[_ADDRESS], wait_s=10.0).embed


def _web(app: str, server: str, processes: str, port: str) -> list[str]:
    """Return the command of the web processes."""
    if server == "uvicorn":
        return [
            *(sys.executable, "-m", "uvicorn", "--factory", f"{_HERE}:{app}", "--port", port),
            *("--workers", processes, "--log-level", "critical", "--no-access-log"),
            *("--lifespan", "auto" if app == "fastapi" else "off"),
            *("--timeout-worker-healthcheck", "3600"),  # they are stopped while others have their turn
        ]
    return [
        *(sys.executable, "-m", "granian", "--factory", f"{_HERE}:{app}", "--port", port),
        *("--interface", "asgi" if app == "fastapi" else "asginl", "--workers", processes),
        *("--loop", "uvloop", "--no-ws", "--log-level", "critical", "--no-access-log"),
    ]


def main() -> None:
    """Start both, and end both."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with tempfile.TemporaryDirectory(prefix="batched-") as folder:
        path = Path(folder, "embed.sock")
        address = os.environ[_ADDRESS] = f"unix:{path}"
        serve = (sys.executable, "-m", "batched", "serve")
        model = subprocess.Popen([*serve, "benchmarks.http.function:embed", "--bind", address])  # noqa: S603
        give_up = time.monotonic() + _START_S
        while not path.exists() and model.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)
        web = subprocess.Popen(_web(*sys.argv[1:]))  # noqa: S603  our own words
        while not told and model.poll() is None and web.poll() is None:
            time.sleep(0.2)
        for process in (web, model):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
