"""Advice: what to change so that a run fits, runs faster, or runs on a cheaper card."""
