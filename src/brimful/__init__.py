"""brimful fills the GPUs you already pay for."""

TYPE_CHECKING = False  # typing's own takes as long to import as Python takes to start
if TYPE_CHECKING:
    from brimful.cli.client import Client as Client
    from brimful.predict.fit import fit as fit
    from brimful.predict.replay import replay as replay
    from brimful.predict.traced.program import trace as trace

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`fit`, `replay`, `trace` and `Client`, imported when first asked for: `import brimful` stays light."""
    if name == "fit":
        from brimful.predict.fit import fit

        return fit
    if name == "replay":
        from brimful.predict.replay import replay

        return replay
    if name == "trace":
        from brimful.predict.traced.program import trace

        return trace
    if name == "Client":
        from brimful.cli.client import Client

        return Client
    raise AttributeError(f"module 'brimful' has no attribute {name!r}")
