"""Offers of clouds, read from files."""
