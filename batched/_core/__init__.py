"""What is decided: which calls run together, and when. Pure: told the time, it never waits.

May import `_policy` and `errors` only; neither threads, event loops, clocks nor arrays.
"""
