"""Configs: one reader per file format, each turning a file into a Model and a Training without running it."""
