"""What a script may do instead of training, as the child process tells it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import BadInput, BrimfulError
from brimful.language import language
from brimful.tracing.child import traced
from brimful.tracing.launch import trace_script
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.torch

EXTENSION = """\
import torch
lib = torch.library.Library('nobody', 'DEF')
lib.define('kernel(Tensor x) -> Tensor')
lib.impl('kernel', lambda x: x, 'CUDA')
torch.ops.nobody.kernel(torch.ones(2, device='cuda'))
"""

# What the script does -> its code, the error's code, and what its reason says.
AT_2 = {"code": "tracing.at_place", "file": "train.py", "line": 2}
TROUBLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "raises": ("x = 1\nx.shape", "script_failed", {"where": AT_2, "kind": "AttributeError"}),
    "reads stdin": ("name = input('dataset? ')", "bad_input", {"kind": "EOFError"}),
    "forks": ("import os\nos.fork()", "script_forks", {"code": "tracing.script_forks"}),
    "exits": ("import sys\nsys.exit(3)", "bad_input", {"code": "tracing.script_exited", "status": 3}),
    "lacks a package": ("import flash_attn_of_nobody", "script_failed", {"kind": "ModuleNotFoundError"}),
    "calls an extension": (EXTENSION, "unknown_kernel", {"code": "tracing.unknown_kernel"}),
    "shapes by values": (
        "import torch\ntorch.ones(9, device='cuda').nonzero()",
        "shape_from_values",
        {"code": "tracing.shape_from_values"},
    ),
    "never uses the GPU": (
        "import torch\ntorch.ones(3).sum()",
        "nothing_on_gpu",
        {"code": "tracing.nothing_on_gpu"},
    ),
    "is no Python": ("for for", "script_failed", {"kind": "SyntaxError"}),
}


def a_request(script: Path, **more: Any) -> dict[str, Any]:
    request = {
        "script": str(script),
        "arguments": [],
        "gpu": "rtx-4070",
        "steps": 2,
        "settings": "",
        "rough": False,
    }
    return {**request, **more}


@pytest.mark.parametrize("what", TROUBLE)
def test_a_script_that(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, error_code, says = TROUBLE[what]
    path = tmp_path / "train.py"
    path.write_text(code)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(BrimfulError) as caught:
            traced(a_request(path))

    assert caught.value.code == error_code
    assert caught.value.said.as_dict().items() >= says.items()
    assert caught.value.hint


def test_a_script_may_set_the_allocator_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Set, not deleted: what was never there would be restored to what the script left behind.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    path = tmp_path / "train.py"
    path.write_text(
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
        "import torch\ntorch.ones(3, device='cuda')"
    )

    data = traced(a_request(path, settings=None))
    assert data["allocator_settings"] == "expandable_segments:True"


def test_what_a_script_asks_the_card_is_answered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "assert torch.cuda.is_available() and torch.cuda.device_count() == 1\n"
        "x = torch.ones(1 << 20, device='cuda')\n"
        "card = torch.cuda.get_device_name()\n"
        "print(card, torch.cuda.memory_allocated(), torch.cuda.get_device_capability())\n"
        "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "start.record(); end.record(); torch.cuda.synchronize(); start.elapsed_time(end)\n"
        "with torch.cuda.stream(torch.cuda.Stream()): x.record_stream(torch.cuda.current_stream())\n"
        "torch.cuda.reset_peak_memory_stats(); torch.cuda.empty_cache(); torch.cuda.manual_seed(1)\n"
        "torch.manual_seed(1); torch.cuda.memory._record_memory_history(); torch.cuda.nvtx.range_push('x')\n"
    )
    traced(a_request(path))

    assert "NVIDIA GeForce RTX 4070 4194304 (8, 9)" in capfd.readouterr().out


def test_what_a_training_loop_prints_and_saves_needs_no_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "model.pt"
    kept.write_text("a real checkpoint")
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "weights = torch.ones(1 << 20, device='cuda')\n"
        "loss = weights.sum()\n"
        "print(f'{loss:.2f}')\n"
        "more = weights + 1\n"
        "del more\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "print(torch.cuda.max_memory_allocated(), torch.accelerator.max_memory_allocated())\n"
        f"torch.save(weights, {str(kept)!r})\n"
    )
    data = traced(a_request(path))

    # 4 MiB of weights and 512 B for their sum: what the reset forgot was 8 MiB
    assert capfd.readouterr().out.split() == ["1.00", "4194816", "4194816"]
    assert kept.read_text() == "a real checkpoint"
    assert data["rules_fired"]["torch.save: nothing is written"] == 1


def test_a_failure_on_the_way_out_does_not_lose_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    for _ in range(9):\n"
        "        model(torch.ones(2, 8, device='cuda')).sum().backward()\n"
        "        sgd.step()\n"
        "finally:\n"
        "    raise OSError('no room for the last checkpoint')\n"
    )
    data = traced(a_request(path))

    assert data["steps"] == 2
    assert data["note_codes"] == [{"code": "tracing.note_script_ended", "name": "OSError"}]


@pytest.mark.parametrize(("times", "verdict"), [("(x > 0).sum().item()", "cannot_tell"), ("len(x)", "fits")])
def test_a_loop_that_runs_as_often_as_a_gpu_value_says_never_fits(
    tmp_path: Path, times: str, verdict: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(9):\n"
        "    x = torch.ones(2, 8, device='cuda')\n"
        f"    losses = [model(x).sum() for _ in range({times})]\n"
        "    sum(losses).backward()\n"
        "    sgd.step()\n"
    )
    data = traced(a_request(path))

    assert data["verdict"] == verdict


def test_what_the_traced_process_says_is_told_in_any_language(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\nx.shape")
    with pytest.raises(BadInput) as caught:
        trace_script(path, [], gpu="rtx-4070", steps=1, limit_s=PATIENCE_S)

    assert caught.value.code == "script_failed"
    assert caught.value.said.as_dict()["where"] == AT_2
    assert caught.value.way_out is not None
    assert caught.value.way_out.as_dict()["parts"][0] == {"code": "tracing.hint_unknown_case"}
    german = language("de").text(caught.value.said)
    assert (german != caught.value.problem, "train.py:2" in german) == (True, True)
