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

_PLACES = {
    "Client": "brimful.cli.client",
    "LightningMeter": "brimful.meter.callbacks",
    "TrainerMeter": "brimful.meter.callbacks",
    "Meter": "brimful.meter.loop",
    "fit": "brimful.predict.fit",
    "replay": "brimful.predict.replay",
    "trace": "brimful.predict.traced.program",
}


def __getattr__(name: str) -> object:
    """What `import brimful` offers, imported when first asked for, so that it stays light."""
    if name not in _PLACES:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
