"""Traces against real cards: 75 runs measured by the authors of xMem, beside four estimators.

    make bench ARGS=cards      some 5 CPU minutes

The measurement is the reserved peak (NVML's, minus what the context held before). The runs are rewritten from
the authors' published loop: fp32, zero_grad at the start of a step, three steps; images of 86 x 86, or up to
128 tokens padded to the longest of the batch. Every batch is traced at 128 tokens. Nothing is fitted.
transformers is the release that the authors used (their paper_container/config.py asks for 4.51.3): a newer
one keeps other tensors. It is installed outside .venv, so the runs are traced in a separate process. The data
is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.document import markdown
from bench.measure import ROOT, Benchmark
from brimful.specs.gpu import find_gpu
from brimful.units import MIB

TITLE = "Traces beside real cards"
TABLES = ("cards", "cards-oom", "cards-chance")
SHARED = Path(os.environ.get("BRIMFUL_SHARED_DATA", ROOT.parent / "shared" / "data"))
DATA = SHARED / "runs" / "xmem_measured.csv"
CARDS = {
    "NVIDIA-GeForce-RTX-3060": "rtx-3060-12gb",
    "NVIDIA-GeForce-RTX-4060": "rtx-4060",
    "NVIDIA-A100-SXM4-40GB": "a100-sxm-40gb",
}
PEERS = ("xmem", "dnnmem", "llmem", "schedtune")
GROUPS: dict[str, Callable[[dict[str, str]], bool]] = {
    "CNN": lambda row: row["kind"] == "cnn",
    "transformer, RTX": lambda row: row["kind"] != "cnn" and "RTX" in row["gpu"],
    "transformer, A100": lambda row: row["kind"] != "cnn" and "A100" in row["gpu"],
}
TOKENS, PIXELS, CLASSES = 128, 86, 10
OPT_S = 8.0
# Model -> its function in torchvision, and whether it has the data's ten classes or ImageNet's.
CNNS = {
    "ConvNeXtTiny": ("convnext_tiny", False),
    "ConvNeXtBase": ("convnext_base", False),
    "MnasNet": ("mnasnet1_0", True),
    "MobeNetV3Large": ("mobilenet_v3_large", True),
    "MobileNetV2": ("mobilenet_v2", False),
    "RegNetX400MF": ("regnet_x_400mf", False),
    "RegNetY400MF": ("regnet_y_400mf", False),
    "ResNet101": ("resnet101", False),
    "ResNet152": ("resnet152", False),
    "VGG16": ("vgg16", False),
    "VGG19": ("vgg19", False),
}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Model -> its configuration class in transformers, and where it differs from the defaults.
LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "T5-small": ("T5Config", {"decoder_start_token_id": 0}),
    "facebook/opt-125m": ("OPTConfig", {}),
    "facebook/opt-350m": (
        "OPTConfig",
        {
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
            "word_embed_proj_dim": 512, "do_layer_norm_before": False,
        },
    ),
    "openai-community/gpt2": ("GPT2Config", {}),
    "distilbert/distilgpt2": ("GPT2Config", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        {"n_layer": 10, "n_inner": 3072, "n_positions": 2048, "activation_function": "gelu", **_NO_DROPOUT},
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        {
            "hidden_size": 768, "num_layers": 12, "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
    "Qwen/Qwen3-4B": (
        "Qwen3Config",
        {
            "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2Config",
        {
            "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
            "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip


def benchmarks() -> Iterator[Benchmark]:
    row = {
        "model": "facebook/opt-125m", "kind": "transformer", "optimizer": "AdamW", "batch": "8",
        "gpu": "NVIDIA-GeForce-RTX-3060", "card_total_mib": "12037.4",
    }  # fmt: skip

    def once() -> float:
        start_s = time.process_time()
        traced(row)
        return time.process_time() - start_s

    yield Benchmark(
        name="trace OPT-125M, three steps", subject=once, peer_name="promise", peer=lambda: OPT_S, bar=1
    )


def tables() -> dict[str, str]:
    if not DATA.is_file():
        return {}
    subprocess.run([ROOT / "tools" / "setup.sh", "cards"], check=True)
    with tempfile.TemporaryDirectory(prefix="brimful-cards-") as folder:
        answers = Path(folder) / "answers.json"
        paths = os.pathsep.join(map(str, (ROOT / ".venv" / "cards", ROOT)))
        command = [sys.executable, "-m", "bench.groups.cards", str(answers)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
        rows = json.loads(answers.read_text(encoding="utf-8"))
    return {"cards": _errors(rows), "cards-oom": _verdicts(rows), "cards-chance": _chances(rows)}


def main(answers: Path) -> None:
    """Trace every row, and write the rows with our answers."""
    _torchvision()  # transformers looks for it too
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update(traced(row))
        print(
            *(row[name] for name in ("model", "optimizer", "batch", "gpu", "oom", "measured_peak_mib")),
            *(row[name] for name in ("estimate_brimful_mib", "brimful_says_oom", "estimate_xmem_mib")),
            sep=",", flush=True,
        )  # fmt: skip
    answers.write_text(json.dumps(rows), encoding="utf-8")


def traced(row: dict[str, str]) -> dict[str, str]:
    """Our answer for one measured run, in the table's format."""
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.report import report
    from brimful.tracing.session import recording
    from brimful.tracing.steps import EnoughSteps

    gpu = find_gpu(CARDS[row["gpu"]])
    gpu = replace(gpu, memory_bytes=int(float(row["card_total_mib"]) * MIB))
    with recording(cuda_device(gpu), steps=3) as recorder, suppress(EnoughSteps):
        training(row)
    found = report(recorder.tape, recorder.costs, gpu)
    assert found.chance is not None, found.doubts
    return {
        "estimate_brimful_mib": f"{found.reserved_bytes / MIB:.1f}",
        "brimful_says_oom": "yes" if found.out_of_memory else "no",
        "brimful_chance": f"{found.chance:.4f}",
    }


def training(row: dict[str, str]) -> None:
    """The measured loop: everything of a step is held until the next one replaces it."""
    import torch

    batch = int(row["batch"])
    images = row["kind"] == "cnn"
    model = (a_cnn if images else a_language_model)(row["model"]).to("cuda")
    model.train()
    optimizer = getattr(torch.optim, row["optimizer"])(model.parameters(), lr=0.001)
    while True:
        optimizer.zero_grad()
        if images:
            pixels = torch.zeros(batch, 3, PIXELS, PIXELS).to("cuda")
            labels = torch.zeros(batch, dtype=torch.long).to("cuda")
            out = model(pixels)
            loss = torch.nn.functional.cross_entropy(out, labels)
        else:
            ids = torch.zeros(batch, TOKENS, dtype=torch.long).to("cuda")
            mask = torch.ones(batch, TOKENS, dtype=torch.long).to("cuda")
            labels = torch.zeros(batch, TOKENS, dtype=torch.long).to("cuda")
            out = model(input_ids=ids, attention_mask=mask, labels=labels)
            loss = out.loss
        loss.backward()
        optimizer.step()


def a_language_model(name: str) -> Any:
    import transformers

    kind, sizes = LANGUAGE[name]
    config = getattr(transformers, kind)(**sizes)
    makers = (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM)
    return makers[bool(config.is_encoder_decoder)].from_config(config)


def a_cnn(name: str) -> Any:
    function, ten = CNNS[name]
    return getattr(_torchvision(), function)(**({"num_classes": CLASSES} if ten else {}))


def _torchvision() -> Any:
    """torchvision's models. With a CPU build of PyTorch the package's own ops do not load.

    The models need none of them, but the package registers them with PyTorch, so they are declared first.
    """
    import torch

    global _declared  # noqa: PLW0603  ops are declared once in a process
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    if _declared is None and torch.version.cuda is None:
        text = Path(spec.origin).with_name("_meta_registrations.py").read_text(encoding="utf-8")
        _declared = torch.library.Library("torchvision", "DEF")
        for op in dict.fromkeys(re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', text)):
            _declared.define(f"{op}(Tensor x) -> Tensor")
    from torchvision import models

    return models


_declared: Any = None


# ---- tables


def _errors(rows: Sequence[dict[str, str]]) -> str:
    """Median, p90 and worst error of runs that fit, by kind of model."""
    cells = []
    for who in ("brimful", *PEERS):
        cell = [who]
        for chosen in GROUPS.values():
            errors = sorted(_error(row, who) for row in rows if chosen(row) and _measured(row, who))
            cell.append(_shown(errors) if errors else "")
        cells.append(cell)
    return markdown(["median / p90 / worst error, %", *GROUPS], cells)


def _measured(row: dict[str, str], who: str) -> bool:
    return row["oom"] == "no" and bool(row["measured_peak_mib"]) and _estimated(row, who)


def _estimated(row: dict[str, str], who: str) -> bool:
    return row[f"estimate_{who}_mib"] not in ("", "no estimate")


def _error(row: dict[str, str], who: str) -> float:
    return abs(float(row[f"estimate_{who}_mib"]) / float(row["measured_peak_mib"]) - 1)


def _shown(errors: Sequence[float]) -> str:
    p90 = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
    values = " / ".join(f"{100 * error:.1f}" for error in (statistics.median(errors), p90, errors[-1]))
    return f"{values} ({len(errors)})"


def _verdicts(rows: Sequence[dict[str, str]]) -> str:
    cells = []
    for who in ("brimful", *PEERS):
        told = [row for row in rows if row[f"{who}_says_oom"] == "yes" or _estimated(row, who)]
        out = [row for row in told if row["oom"] == "yes"]
        cells.append([who, *(_right(some, who) for some in (told, out))])
    return markdown(["verdicts", "right", "right where the run did not fit"], cells)


def _chances(rows: Sequence[dict[str, str]]) -> str:
    """How many runs ran out of memory, by the chance that their trace gave."""
    ends = (0, 0.05, 0.5, 0.95, 1)
    cells = []
    for place, (low, high) in enumerate(pairwise(ends), start=1):
        inside = [row for row in rows if max(1, bisect_left(ends, float(row["brimful_chance"]))) == place]
        out = sum(row["oom"] == "yes" for row in inside)
        cells.append([f"{100 * low:.0f} to {100 * high:.0f} %", f"{len(inside)}", f"{out}"])
    return markdown(["chance of running out", "runs", "ran out"], cells)


def _right(rows: Sequence[dict[str, str]], who: str) -> str:
    return f"{sum(row[f'{who}_says_oom'] == row['oom'] for row in rows)} of {len(rows)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
