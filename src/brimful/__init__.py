"""brimful fills the GPUs you already pay for."""

TYPE_CHECKING = False  # typing's own takes as long to import as Python takes to start
if TYPE_CHECKING:
    from brimful.cli.client import Client as Client
    from brimful.meter.callbacks import LightningMeter as LightningMeter
    from brimful.meter.callbacks import TrainerMeter as TrainerMeter
    from brimful.meter.loop import Meter as Meter
    from brimful.predict.fit import fit as fit
    from brimful.predict.replay import replay as replay
    from brimful.predict.traced.program import trace as trace

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """What `import brimful` offers, imported when first asked for, so that it stays light."""
    if name == "fit":
        from brimful.predict.fit import fit

        return fit
    if name == "replay":
        from brimful.predict.replay import replay

        return replay
    if name == "trace":
        from brimful.predict.traced.program import trace

        return trace
    if name == "Meter":
        from brimful.meter.loop import Meter

        return Meter
    if name in ("TrainerMeter", "LightningMeter"):
        from brimful.meter import callbacks

        return getattr(callbacks, name)
    if name == "Client":
        from brimful.cli.client import Client

        return Client
    raise AttributeError(f"module 'brimful' has no attribute {name!r}")
