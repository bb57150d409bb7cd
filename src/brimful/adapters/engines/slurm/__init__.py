"""Slurm as an engine: leases as batch jobs on the nodes that the plan names."""
