"""Calls that are answered in parts: `batched/_parts`."""
