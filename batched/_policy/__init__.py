"""How long a batch waits, and what goes together: cost models, and what is learned from batches.

Pure. May import `errors` only.
"""
