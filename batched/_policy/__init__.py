"""How long a batch waits, and what goes together: cost models, and what is learned from batches.

The rule for the start of a batch is the plain `window`, or the `adaptive` one, which weighs returning
callers (`cohorts`) and `bursts` by the cost of a batch (`batch_cost`). `lengths` chooses items of near
lengths by the cost of padding (`length_cost`). `best_size` finds the size at which full batches are fastest.
`service_time` tells whether a call can be in time.

Pure. May import `errors` only.
"""
