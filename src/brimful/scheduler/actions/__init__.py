"""What one decision does, in the order of `decide`: each action reads and writes the cycle."""
