"""The model as this service batches it, for its own process and for one of its own.

`python -m batched serve benchmarks.http.function:embed` is the latter.
"""

from __future__ import annotations

import batched
from benchmarks.http.models import BATCH_SIZE, load

__all__ = ["embed"]

# As `examples/embedding_service_model.py` has it, but with batches as small as those of the other servers.
embed = batched.dynamically(
    load(), batch_size=BATCH_SIZE, name="embed", max_queue_size=1_024, default_deadline_ms=10_000
)
