"""`Reading`: what every reader hands on, whatever the file format."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.specs.estimate import Assumption
from brimful.specs.model import Model
from brimful.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    model: Model
    training: Training
    assumed: tuple[Assumption, ...]  # left out of the file, filled with the trainer's defaults
    warnings: tuple[str, ...]  # seen in the file and not used
