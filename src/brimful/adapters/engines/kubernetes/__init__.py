"""Kubernetes as a site: one Pod per rank of a lease."""
