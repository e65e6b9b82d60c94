"""What every benchmark needs: callers, bare limits, contenders that take turns, tables, files of results.

A benchmark is a file in a folder beside this one: it has `ROWS`, or a `PROGRAM` with options of its own.
Nothing here knows what is measured. `bare` and `measure` need Python only, as other servers import them.
"""
