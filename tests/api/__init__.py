"""What a user holds: `batched/_api`, `batched/aio` and `batched/inference.py`."""
