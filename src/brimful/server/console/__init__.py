"""One page for people: what the API says, drawn by the server and kept live."""
