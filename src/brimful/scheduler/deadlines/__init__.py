"""Finish in time at low cost: spot, firm capacity, or wait."""
