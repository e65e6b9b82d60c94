"""What items are: how calls become the argument of the batch function, and its outputs their answers.

May import `_core`, `_policy` and `errors`.
"""
