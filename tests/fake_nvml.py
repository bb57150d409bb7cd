"""The fake libnvidia-ml.so.1 (fake_nvml.c): compiled once per session, its cards changed while readers run.

def test_…(fake_nvml):
    fake_nvml.show(a_card("NVIDIA GeForce RTX 4070", memory_used=10 * GIB, busy=97))
    subprocess.run([...], env=fake_nvml.env)          # any program that loads libnvidia-ml.so.1
    with fake_nvml.here(): ...                        # or this process
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brimful.units import GIB

SOURCE = Path(__file__).with_name("fake_nvml.c")
DRIVER = "580.65.06"
ERRORS = {  # NVML's own names and numbers
    "UNINITIALIZED": 1, "INVALID_ARGUMENT": 2, "NOT_SUPPORTED": 3, "NO_PERMISSION": 4,
    "ALREADY_INITIALIZED": 5, "NOT_FOUND": 6, "INSUFFICIENT_SIZE": 7, "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9, "TIMEOUT": 10,
    "IRQ_ISSUE": 11, "LIBRARY_NOT_FOUND": 12, "FUNCTION_NOT_FOUND": 13, "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15, "RESET_REQUIRED": 16, "OPERATING_SYSTEM": 17, "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19, "MEMORY": 20, "NO_DATA": 21, "VGPU_ECC_NOT_SUPPORTED": 22, "INSUFFICIENT_RESOURCES": 23,
    "FREQ_NOT_SUPPORTED": 24, "ARGUMENT_VERSION_MISMATCH": 25, "DEPRECATED": 26, "NOT_READY": 27,
    "GPU_NOT_FOUND": 28, "INVALID_STATE": 29, "RESET_TYPE_NOT_SUPPORTED": 30, "UNKNOWN": 999,
}  # fmt: skip
LOST = {"*": ERRORS["GPU_IS_LOST"]}  # what a card answers that fell off the bus


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card, or one MIG slice. `fields`: words of fake_nvml.c; one left out is not supported."""

    name: str
    uuid: str
    fields: dict[str, int]
    processes: tuple[tuple[int, int, str], ...] = ()  # pid, bytes (0: the driver does not say), kind
    fails: dict[str, int] = field(default_factory=dict)  # function of NVML -> code
    slices: tuple[Card, ...] = ()

    def lines(self, word: str) -> Iterator[str]:
        yield from (word, f"name {self.name}", f"uuid {self.uuid}")
        yield from (f"{name} {value}" for name, value in self.fields.items())
        yield from (f"process {pid} {used} {kind}" for pid, used, kind in self.processes)
        yield from (f"fail {function} {code}" for function, code in self.fails.items())
        for each in self.slices:
            yield from each.lines("mig")


def a_card(
    name: str = "NVIDIA GeForce RTX 4070",
    *,
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555",
    processes: Sequence[tuple[int, int, str]] = (),
    fails: dict[str, int] | None = None,
    slices: Sequence[Card] = (),
    without: Sequence[str] = (),
    **fields: int,
) -> Card:
    """A GeForce at work: no ECC, no MIG."""
    usual = {
        "memory_total": 12282 * 1024**2, "memory_used": 9 * GIB, "memory_reserved": 300 * 1024**2,
        "busy": 97, "memory_busy": 41, "power_mw": 186_500, "power_limit_mw": 200_000, "temperature": 67,
        "fan": 38, "sm_clock": 2475, "sm_clock_max": 3105, "memory_clock": 10501, "memory_clock_max": 10501,
        "throttle": 0, "encoder": 0, "decoder": 0, "pstate": 2,
    }  # fmt: skip
    use = {word: value for word, value in {**usual, **fields}.items() if word not in without}
    return Card(
        name=name, uuid=uuid, fields=use, processes=tuple(processes), fails=fails or {}, slices=tuple(slices)
    )


class FakeNvml:
    """The library, and the file it reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "nvml.txt"
        self.library = compiled(folder)

    def show(self, *cards: Card, fails: dict[str, int] | None = None, driver: str = DRIVER) -> None:
        """From now on the machine has these cards. Replaced in one step: no reader sees half of it."""
        lines = [f"driver {driver}", *(f"fail {name} {code}" for name, code in (fails or {}).items())]
        lines += [line for card in cards for line in card.lines("gpu")]
        half = self.state.with_suffix(".new")
        half.write_text("\n".join(lines) + "\n", encoding="utf-8")
        half.replace(self.state)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program that shall find the library."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_STATE": str(self.state)}

    @contextmanager
    def here(self) -> Iterator[None]:
        """This process finds it: a library already loaded under its soname is the one `dlopen` gives."""
        ctypes.CDLL(str(self.library))
        before = os.environ.get("FAKE_NVML_STATE")
        os.environ["FAKE_NVML_STATE"] = str(self.state)
        try:
            yield
        finally:
            del os.environ["FAKE_NVML_STATE"]
            if before is not None:
                os.environ["FAKE_NVML_STATE"] = before


def compiled(folder: Path) -> Path:
    """libnvidia-ml.so.1 in `folder`: what fake_nvml.c has, and NOT_SUPPORTED for all else pynvml may ask."""
    import pynvml

    written = set(re.findall(r"\b(nvml[A-Z]\w*)\(", SOURCE.read_text(encoding="utf-8")))
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text("utf-8")))
    stubs = folder / "stubs.c"
    stubs.write_text("".join(f"int {name}() {{ return 3; }}\n" for name in sorted(asked - written)))
    library = folder / "libnvidia-ml.so.1"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "needs a C compiler"
    flags = ["-shared", "-fPIC", "-w", "-O1", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE), str(stubs)], check=True)
    return library
