"""One file per kind of engine."""
