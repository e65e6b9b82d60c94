"""The process that embeds sentences, seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.kit.measure import LIMIT_S
from benchmarks.kit.own_process import surroundings

__all__ = ["Embedder"]

Job = dict[str, Any]


class Embedder:
    """The process, seen from outside: it has loaded the model once it is made.

    Raises `ImportError` if what it needs is not installed.
    """

    def __init__(self, library: str, path: Path | None = None, device: str = "cpu") -> None:
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", "benchmarks.model.embedding", library, device],
            env={**surroundings(path), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def run(self, job: str, sentences: list[str], callers: int = 1) -> Job:
        """Have it do a job; return what that took."""
        assert self._process.stdin is not None
        line = json.dumps({"job": job, "sentences": sentences, "callers": callers})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Job:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with exit status {self._process.wait(LIMIT_S)}")
        found: Job = json.loads(line)
        if "missing" in found:
            self.close()
            raise ImportError(found["missing"])
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)
