"""Trace a PyTorch program without a GPU: what it would hold, to the byte.

PyTorch is imported only when something is traced.
"""
