"""The server rehearses its own past, in a process of its own, and may change its policy by what it finds."""
