"""One file or package per kind of engine."""
