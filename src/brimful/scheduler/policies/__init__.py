"""Each decision small and alone in its file."""
