"""Which of these tests there are."""

from __future__ import annotations

import os

if not hasattr(os, "sched_setaffinity"):
    collect_ignore_glob = ["test_*.py"]  # the benchmarks pin themselves to a core, which Linux allows
