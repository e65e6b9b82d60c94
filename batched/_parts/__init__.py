"""Calls that are divided before the queue, by key, by length or by what a cache knows, and joined again.

May import `_collate`, `_core`, `_policy` and `errors`.
"""
