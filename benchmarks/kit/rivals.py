"""Other batchers for Python: which versions, and where pip puts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.kit.measure import LIMIT_S, Effort
from benchmarks.kit.turns import Unavailable

__all__ = ["LOOP_RIVALS", "RIVAL", "home"]

RIVAL = "0.1.5"  # of `batched` itself: it has our very import name
LOOP_RIVALS = ("aiodataloader", "async-batcher", RIVAL)
_REQUIREMENTS = {
    RIVAL: f"batched=={RIVAL}",
    "aiodataloader": "aiodataloader==0.4.3",
    "async-batcher": "async-batcher==0.2.2",
    "litserve": "litserve==0.2.19",
    "infinity": "infinity-emb==0.0.78",
}
_WITHOUT = {"infinity": ("--no-deps",)}  # it asks for an older sentence-transformers, and runs with this one
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batched-benchmarks"


def home(effort: Effort, rival: str) -> Path:
    """Return where a rival is; once, have pip put it there, where nothing else is looked for.

    Raises `Unavailable` if pip cannot.
    """
    effort.announce(f"installing {_REQUIREMENTS[rival]}")
    home = _CACHE / rival
    if home.exists():
        return home
    unfinished = home.with_name(f"{rival}-{os.getpid()}")
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", *_WITHOUT.get(rival, ())),
        *("--target", str(unfinished), _REQUIREMENTS[rival]),
    ]
    try:
        subprocess.run(command, timeout=LIMIT_S, check=True, capture_output=True)  # noqa: S603  no user's input
        unfinished.rename(home)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{_REQUIREMENTS[rival]}: pip cannot install it here") from error
    return home
