"""One reader per trace format."""
