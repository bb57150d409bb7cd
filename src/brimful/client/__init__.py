"""The API client for commands, scripts and notebooks."""
