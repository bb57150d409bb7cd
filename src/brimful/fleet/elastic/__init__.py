"""Gangs that have a range of sizes."""
