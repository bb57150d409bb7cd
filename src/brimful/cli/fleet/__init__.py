"""A fleet and its jobs, as the server shows them."""
