"""Slurm as an engine: leases become batch jobs on the nodes that the plan names."""
