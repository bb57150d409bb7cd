"""Build the shim (shim.cpp) with the machine's own C++ compiler, once per version of PyTorch, and load it.

A prebuilt library would have to match the user's PyTorch exactly; building takes a few seconds and the result
is cached. If it cannot be built there is the rough mode, which the caller chooses explicitly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from brimful.errors import WorldFailed
from brimful.language import Plain, say

COMPILERS = ("c++", "g++", "clang++")
BUILD_LIMIT_S = 300
PROBE_LIMIT_S = 120
_loaded = False


def load_shim() -> None:
    """Make this process's PyTorch accept fake CUDA tensors, permanently: a device guard cannot be removed."""
    global _loaded  # noqa: PLW0603  one process has one libtorch, and this is a fact about it
    if _loaded:
        return
    library = shim_path()
    if torch.version.cuda is not None or torch.version.hip is not None:
        if torch.cuda.is_available():
            raise WorldFailed(say("tracing.gpu_in_use"), code="gpu_in_use")
        _probe(library)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL).brimful_install()
    _loaded = True


def shim_path() -> Path:
    """The built library, from the cache or built now."""
    source = resources.files("brimful.tracing").joinpath("shim.cpp").read_bytes()
    mark = hashlib.sha256(source + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    library = cache / "brimful" / "shim" / f"torch-{torch.__version__}-{mark}" / "libbrimful_shim.so"
    if not library.exists():
        _build(source, library)
    return library


def _run(command: list[str], limit_s: float, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=limit_s,
        **more,
    )


def _build(source: bytes, library: Path) -> None:
    compiler = os.environ.get("CXX") or next(
        (path for name in COMPILERS if (path := shutil.which(name))), None
    )
    if compiler is None:
        raise WorldFailed(say("tracing.no_compiler", compilers=", ".join(COMPILERS)), code="no_compiler")
    home = Path(torch.__file__).parent
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        code, built = Path(folder) / "shim.cpp", Path(folder) / library.name
        code.write_bytes(source)
        command = [
            compiler, "-std=c++20", "-O1", "-shared", "-fPIC",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include",
            str(code), f"-L{home}/lib", "-lc10", "-ltorch_cpu", "-o", str(built),
        ]  # fmt: skip
        try:
            done = _run(command, BUILD_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _cannot_build(compiler, str(error)) from error
        if done.returncode != 0:
            raise _cannot_build(compiler, next(iter(done.stderr.strip().splitlines()), "no message"))
        built.replace(library)  # atomic: two processes may build at once


def _cannot_build(compiler: str, why: str) -> WorldFailed:
    version = Plain(torch.__version__)
    said = say("tracing.shim_not_built", compiler=compiler, version=version, why=why[:300])
    return WorldFailed(said, code="no_shim")


# Forward, backward and an optimizer: where an incompatible build would abort.
_PROBE = """
import ctypes, os, sys
import torch
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL).brimful_install()
from torch._subclasses.fake_tensor import FakeTensorMode
FakeTensorMode.avoid_device_init = property(lambda self: True)
with FakeTensorMode():
    weight = torch.empty(8, 8, device='cuda', requires_grad=True)
    (torch.empty(4, 8, device='cuda') @ weight).relu().sum().backward()
    assert weight.grad.device.type == 'cuda'
# Autograd's thread may still be letting go of tensors: an interpreter that ends meanwhile aborts.
os._exit(0)
"""


def _probe(library: Path) -> None:
    """Try the shim in a separate process first: an incompatible build would crash ours."""
    works = library.with_suffix(".works")
    if works.exists():
        return
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = _run([sys.executable, "-c", _PROBE, str(library)], PROBE_LIMIT_S, env=environment)
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        failure = None if done.returncode == 0 else last
    except subprocess.TimeoutExpired:
        failure = f"no answer within {PROBE_LIMIT_S} s"
    if failure is not None:
        version = Plain(torch.__version__)
        said = say("tracing.cuda_build_refused", version=version, failure=failure[:300])
        raise WorldFailed(said, code="cuda_build_refused")
    works.touch()
