"""brimful fills the GPUs you already pay for."""

TYPE_CHECKING = False  # typing's own takes as long to import as Python takes to start
if TYPE_CHECKING:
    from brimful.predict.fit import fit as fit
    from brimful.predict.replay import replay as replay
    from brimful.predict.traced.program import trace as trace

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`fit`, `replay` and `trace`, imported when first asked for: `import brimful` stays light."""
    if name == "fit":
        from brimful.predict.fit import fit

        return fit
    if name == "replay":
        from brimful.predict.replay import replay

        return replay
    if name == "trace":
        from brimful.predict.traced.program import trace

        return trace
    raise AttributeError(f"module 'brimful' has no attribute {name!r}")
