"""The decorated function beside plain evaluation, under random options, callers and mishaps.

`plan` draws a run from a seed alone, `work` is the batch function, `callers` ask, `judge` says which
answers and errors the documents allow, `run` puts them together and looks at what is left behind.
`python -m tests.differential --seed N` runs one seed again.
"""
