"""What takes part in the way of calls: each feature is one object in one file.

The core names none of them, and none imports another; `stack.py` in `_parts` lists them in order.
"""
