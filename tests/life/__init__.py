"""How batchers start, fork, are copied, are collected and end."""
