"""The web console: what the API says, rendered by the server and kept live."""
