"""Fakes, batch functions and ways to call that many tests share; the first line of each file says which."""
