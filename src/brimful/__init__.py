"""brimful fills the GPUs you already pay for."""

TYPE_CHECKING = False  # typing's own takes as long to import as Python takes to start
if TYPE_CHECKING:
    from brimful.allocator.replay import replay as replay
    from brimful.client.client import Client as Client
    from brimful.fit.fit import fit as fit
    from brimful.meter.callbacks import LightningMeter as LightningMeter
    from brimful.meter.callbacks import TrainerMeter as TrainerMeter
    from brimful.meter.loop import Meter as Meter
    from brimful.tracing.program import trace as trace

__version__ = "0.1.0"

_PLACES = {
    "Client": "brimful.client.client",
    "LightningMeter": "brimful.meter.callbacks",
    "TrainerMeter": "brimful.meter.callbacks",
    "Meter": "brimful.meter.loop",
    "fit": "brimful.fit.fit",
    "replay": "brimful.allocator.replay",
    "trace": "brimful.tracing.program",
}


def __getattr__(name: str) -> object:
    """What `import brimful` offers, imported when first asked for, so that it stays light."""
    if name not in _PLACES:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"brimful.{name} needs PyTorch, which this Python does not have: pip install torch", name="torch"
        ) from error
