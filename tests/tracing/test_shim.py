"""The shim: built once, refused with a reason where it cannot be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.errors import WorldFailed
from brimful.tracing import shim

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


def test_without_a_compiler_it_says_what_to_install_and_what_else_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(WorldFailed) as caught:
        shim.shim_path()

    assert caught.value.code == "no_compiler"
    assert "g++" in caught.value.hint
    assert "--rough" in caught.value.hint


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'no C++20 here' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(WorldFailed, match="no C\\+\\+20 here") as caught:
        shim.shim_path()

    assert caught.value.code == "no_shim"
    assert not list((tmp_path / "brimful").rglob("*.so"))


def test_it_is_built_once_for_each_version_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    built = shim.shim_path()
    assert built.exists()
    assert torch.__version__ in built.parent.name
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert shim.shim_path() == built  # from the cache: no compiler is asked for


def test_a_build_that_does_not_accept_it_is_refused_by_a_child_and_not_by_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "_PROBE", "import os; os.abort()")
    with pytest.raises(WorldFailed) as caught:
        shim._probe(tmp_path / "libbrimful_shim.so")

    assert caught.value.code == "cuda_build_refused"
    assert "CPU build" in caught.value.hint


def test_the_probe_passes_where_the_shim_works(tmp_path: Path) -> None:
    library = shim.shim_path()
    shim._probe(library)

    assert library.with_suffix(".works").exists()


def test_a_trace_after_a_backward_pass_of_the_process_says_what_to_do() -> None:
    program = (
        "import torch, brimful\nfrom brimful.errors import BrimfulError\n"
        "torch.ones(2, requires_grad=True).sum().backward()\n"
        "try:\n"
        "    brimful.trace(lambda: None, gpu='rtx-4070')\n"
        "except BrimfulError as error:\n"
        "    print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["backward_before_trace"]
