"""Bought capacity: the provider port, what is on offer, what was ordered."""
