"""Checkpoints that move between sites: a folder or an object store that all sites of a job can reach."""
