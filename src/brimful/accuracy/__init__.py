"""Accuracy: published and recorded runs, how far off we are on them, and a user's own calibration."""
