"""The objects that a user holds: a decorated function, bound or not, and the ways to call it.

May import every other room.
"""
