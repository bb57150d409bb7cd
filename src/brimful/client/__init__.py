"""The API client: what the commands, scripts and notebooks speak to a server through."""
