"""What stands before the queue: calls that are divided into parts, and put together again.

By key (`group_by`), by what a cache knows, in order of length.

May import `_collate`, `_core`, `_policy` and `errors`.
"""
