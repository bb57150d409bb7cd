"""One module per group; each offers TITLE and benchmarks()."""
