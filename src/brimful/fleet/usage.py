"""How much each tenant has used lately: GPU-seconds that decay, so that old use is forgiven."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

HALF_LIFE_S = 7 * 86400  # a week ago counts half: the default of Slurm's PriorityDecayHalfLife
_RATE = log(2) / HALF_LIFE_S


@dataclass(slots=True)
class Usage:
    """Use up to `as_of_s`, and the GPUs held since.

    Between changes u(t) = u0·2^(-dt/H) + held·(1 - 2^(-dt/H))·H/ln 2, the integral of decaying GPU-seconds.
    """

    faded_gpu_s: float = 0.0
    held: int = 0
    as_of_s: int = 0

    def at(self, now_s: int) -> float:
        fade: float = 0.5 ** (max(0, now_s - self.as_of_s) / HALF_LIFE_S)
        return self.faded_gpu_s * fade + self.held * (1.0 - fade) / _RATE

    def change(self, gpus: int, *, now_s: int) -> None:
        if now_s > self.as_of_s:
            self.faded_gpu_s, self.as_of_s = self.at(now_s), now_s
        self.held += gpus
