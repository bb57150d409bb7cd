"""Checkpoints that travel: a folder or an object store that every site of a job can reach."""
