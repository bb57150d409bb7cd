"""What the fleet has seen, and predictions learn from."""
