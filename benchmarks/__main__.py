"""`python -m benchmarks`: run benchmarks, compare what was found, draw it."""

from __future__ import annotations

import sys

from benchmarks.kit.command import main

sys.exit(main(sys.argv[1:]))
