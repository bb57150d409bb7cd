"""brimful fills the GPUs you already pay for."""

__version__ = "0.1.0"
