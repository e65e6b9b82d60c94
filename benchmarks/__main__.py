"""`python -m benchmarks`: run benchmarks, compare what was found, draw it."""

from __future__ import annotations

import faulthandler
import sys

from benchmarks.kit.command import main

status = main(sys.argv[1:])
faulthandler.dump_traceback_later(60, exit=True)  # a worker that hangs must not keep the process
sys.exit(status)
