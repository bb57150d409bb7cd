"""Facts: frozen nouns the other rooms speak in, and the table of GPUs."""
