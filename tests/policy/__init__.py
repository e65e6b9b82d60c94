"""How long to wait, and what goes together: `batched/_policy`."""
