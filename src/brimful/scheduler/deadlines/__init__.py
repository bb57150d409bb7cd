"""Finish in time for little: spot, firm capacity, or wait."""
