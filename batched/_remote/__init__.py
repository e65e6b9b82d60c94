"""One function for many processes: a server that holds the function, and clients that call it as their own.

`frames` and `values` are what travels, `server` and `session` the process of the function, `client`, `driver`
and the links the processes of the callers. Nothing else in the package knows this one.
"""
