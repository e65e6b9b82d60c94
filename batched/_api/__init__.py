"""What a user holds: a decorated function, how it binds to an instance, and the ways to call it.

May import every other room.
"""
