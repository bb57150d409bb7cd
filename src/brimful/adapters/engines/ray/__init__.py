"""Leases on a Ray cluster (brimful[ray]): an agent on each node, GPUs held by placement groups."""
