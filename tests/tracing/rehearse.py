"""Run a script to its end on a card that is not there.

    python -m tests.tracing.rehearse --gpu rtx-4070 --memory 4294967296 train.py --batch_size=8

A trace looks at two steps and reports; this goes on, and where the card has no room left it raises what
PyTorch raises there, in the op that asks. So `brimful run` is tested on a machine without a GPU: the script's
own handlers, its checkpoints and how it goes on from one. Tensors have shapes and no numbers, and so have the
checkpoints it writes; each is marked, and a file that is not is never overwritten.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import runpy
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from brimful.allocator import Allocator, Settings
from brimful.allocator.blocks import DEFAULT_POOL, PoolId
from brimful.allocator.caching import OutOfMemory
from brimful.fit.overhead import context_bytes
from brimful.specs.gpu import Gpu, find_gpu
from brimful.tracing.child import die_with_parent, refuse_fork
from brimful.tracing.cuda_device import cuda_device
from brimful.tracing.fakecuda import patched
from brimful.tracing.program import allocator_settings
from brimful.tracing.recorder import Recorder
from brimful.tracing.session import recording
from brimful.units import GIB, KIB, MIB

MARK = "brimful-rehearsal"  # the one member of a checkpoint without numbers
_SEE = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"


def main(words: list[str]) -> None:
    """Returns where the script ends well; whatever it raises, it raises."""
    die_with_parent()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--memory", type=int, required=True, help="bytes of the card, instead of its own")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    script = options.script
    with rehearsing(replace(find_gpu(options.gpu), memory_bytes=options.memory)):
        as_started = [
            (sys, "argv", script),
            (sys, "path", [str(Path(script[0]).resolve().parent), *sys.path[1:]]),
            (os, "fork", refuse_fork),
        ]
        with patched(as_started):
            runpy.run_path(script[0], run_name="__main__")


@contextmanager
def rehearsing(gpu: Gpu) -> Iterator[Recorder]:
    """Fake CUDA of that card with no more memory than it has, and checkpoints of shapes alone."""
    save, load = torch.save, torch.load
    with recording(cuda_device(gpu), steps=sys.maxsize) as recorder:
        recorder.tape.allocator = RehearsedAllocator(gpu, recorder)
        changes = [
            (place, name, function)
            for name, function in (("save", _saving(save)), ("load", _loading(load)))
            for place in (torch, torch.serialization)
        ]
        with patched(changes):
            yield recorder


class RehearsedAllocator(Allocator):
    """The allocator of one card: what it cannot serve is PyTorch's own error, with PyTorch's own words."""

    def __init__(self, gpu: Gpu, recorder: Recorder) -> None:
        self._context_bytes = round(context_bytes(gpu).likely)
        super().__init__(
            Settings.parse(allocator_settings()), gpu.memory_bytes, other_bytes=self._context_bytes
        )
        self._recorder = recorder

    def malloc(self, nbytes: int, stream: int = 0, owner: PoolId = DEFAULT_POOL) -> int:
        try:
            return super().malloc(nbytes, stream, owner)
        except OutOfMemory as full:
            error = torch.OutOfMemoryError(out_of_memory_message(full, self._context_bytes))
            line, event = self._recorder.places.line(), len(self._recorder.tape.events)
            at = f" at {line}" if line else " in the backward pass"
            error.add_note(f"rehearsed without a GPU: request {event:,} of {nbytes:,} bytes{at}")
            raise error from None


def out_of_memory_message(full: OutOfMemory, context: int) -> str:
    """PyTorch's text for this failure.

    Source: c10/cuda/CUDACachingAllocator.cpp, the end of malloc, from PyTorch 2.9 on; real messages of the
    same form stand in tests/diagnose/messages.toml.
    """
    capacity = full.capacity_bytes or 0
    allowed = f"{_shown(full.limit_bytes)} allowed; " if full.limit_bytes is not None else ""
    return (
        f"CUDA out of memory. Tried to allocate {_shown(full.segment_bytes)}. GPU 0 has a total capacity of "
        f"{_shown(capacity)} of which {_shown(full.free_bytes)} is free. Including non-PyTorch memory, this "
        f"process has {_shown(full.reserved_bytes + context)} memory in use. {allowed}Of the allocated "
        f"memory {_shown(full.allocated_bytes)} is allocated by PyTorch, and "
        f"{_shown(full.reserved_bytes - full.allocated_bytes)} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
        f"avoid fragmentation.  See documentation for Memory Management  ({_SEE})"
    )


def _shown(size: int) -> str:
    """A size as PyTorch writes it (format_size)."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size > scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


class _Shapes(pickle.Pickler):
    """Writes tensors as what they would need: tensors that share a storage go on sharing it."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        storage = value.untyped_storage()
        facts = (
            storage._cdata, storage.nbytes(), str(value.dtype).removeprefix("torch."), tuple(value.shape),
            tuple(value.stride()), value.storage_offset(), str(value.device), value.requires_grad,
            isinstance(value, torch.nn.Parameter),
        )  # fmt: skip
        return _Tensors.__call__, (_TENSORS, *facts)


class _Tensors:
    """Makes the tensors of one checkpoint anew, each storage once."""

    def __init__(self) -> None:
        self.device: Any = None
        self.made: dict[int, Any] = {}

    def __call__(
        self, key: int, nbytes: int, dtype: str, shape: Any, stride: Any, offset: int, device: str,
        requires_grad: bool, parameter: bool,
    ) -> Any:  # fmt: skip
        kind = getattr(torch, dtype)
        if key not in self.made:
            where = self.device or device
            self.made[key] = torch.empty(nbytes // kind.itemsize, dtype=kind, device=where)
        tensor = self.made[key].as_strided(shape, stride, offset)
        return (
            torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)
        )

    def __reduce__(self) -> Any:
        return _tensors, ()


_TENSORS = _Tensors()


def _tensors() -> _Tensors:
    return _TENSORS


def _saving(plain: Any) -> Any:
    def save(value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(file, str | os.PathLike):
            plain(value, file, *args, **kwargs)
            return
        path = Path(file)
        assert not path.exists() or _rehearsed(path), f"{path} holds real numbers"
        body = io.BytesIO()
        _Shapes(body).dump(value)
        part = path.with_name(path.name + ".part")
        with zipfile.ZipFile(part, "w") as whole:
            whole.writestr(MARK, body.getvalue())
        part.replace(path)

    return save


def _loading(plain: Any) -> Any:
    def load(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if not isinstance(file, str | os.PathLike) or not _rehearsed(Path(file)):
            return plain(file, map_location, **kwargs)
        _TENSORS.device = None if callable(map_location) else map_location
        with zipfile.ZipFile(file) as whole:
            # Written by this module, for a script that is run anyway.
            found = pickle.loads(whole.read(MARK))
        _TENSORS.made.clear()
        return found

    return load


def _rehearsed(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as whole:
            return whole.namelist() == [MARK]
    except (OSError, zipfile.BadZipFile):
        return False


if __name__ == "__main__":
    # By its own name: while the script runs, `__main__` is the script, and checkpoints name where we are.
    from tests.tracing import rehearse

    rehearse.main(sys.argv[1:])
