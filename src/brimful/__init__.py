"""brimful fills the GPUs you already pay for."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what it returns depends on the name asked for
    """`brimful.fit`, imported when first asked for: `import brimful` stays light."""
    if name == "fit":
        from brimful.predict.fit import fit

        return fit
    raise AttributeError(f"module 'brimful' has no attribute {name!r}")
