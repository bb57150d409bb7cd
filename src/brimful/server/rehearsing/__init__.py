"""The server rehearses its own past in a separate process, and may change its policy based on the result."""
