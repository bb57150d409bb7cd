"""Benchmarks: `make bench`. One file per group in bench/groups."""
