"""Fit: what a training job needs and how fast it runs, predicted before it does."""
