"""Kubernetes as a site: one Pod for each rank of a lease."""
