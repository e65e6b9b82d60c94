"""Where callers and batches wait: threads, event loops, and what wakes them.

A driver asks the core what to do next, runs batches, and wakes callers. It may import `_parts`, `_collate`,
`_core`, `_policy` and `errors`, but not `_api`.
"""
