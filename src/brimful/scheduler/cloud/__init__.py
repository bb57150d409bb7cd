"""Capacity that is bought: the port to providers, what could be had, what was ordered."""
