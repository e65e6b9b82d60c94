"""What items are: joins the items of calls to the argument of a batch function, and splits its outputs.

May import `_core`, `_policy` and `errors`.
"""
