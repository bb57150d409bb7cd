"""Explain: what an out-of-memory message, a log line or an nvidia-smi table says, and what it does not."""
