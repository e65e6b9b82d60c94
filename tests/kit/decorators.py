"""The four decorators, each with its options and with arguments that its signature has besides."""

from __future__ import annotations

import batched
from batched import aio, inference
from batched._core.options import ArrayOptions, Options

DECORATORS = (
    (batched.dynamically, Options, {"length": len}),
    (inference.dynamically, ArrayOptions, {"pad_tokens": 3}),
    (aio.dynamically, Options, {"length": len}),
    (aio.inference.dynamically, ArrayOptions, {"pad_tokens": 3}),
)
