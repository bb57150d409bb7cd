"""Trace a PyTorch program without a GPU: what it would hold, to the byte.

Only this package of the room imports PyTorch, and only when something is traced.
"""
