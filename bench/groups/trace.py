"""Traces: how long they take, what peers say of the same model, and how close recordings and formulas are.

Needs PyTorch and the peers (`make bench` installs both). Times are CPU seconds after PyTorch is loaded.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.document import markdown
from bench.measure import ROOT, Benchmark
from brimful.allocator import FREE, MALLOC
from brimful.units import GIB, MIB

TITLE = "Trace"
GPT2_S, LLAMA_S = 4.0, 20.0
GPU = "h100-sxm-80gb"
SNAPSHOTS = ROOT.parent / "shared" / "data" / "snapshots"
# Model name -> layers, heads, width, micro-batch of 1,024 tokens.
GPT2 = {
    "gpt2": (12, 12, 768, 12),
    "gpt2-medium": (24, 16, 1024, 8),
    "gpt2-large": (36, 20, 1280, 4),
    "gpt2-xl": (48, 25, 1600, 2),
}
# Name -> layers, heads, key heads, width, MLP width, vocabulary, tied; one sequence of 2,048 tokens.
LLAMA = {
    "llama-3.2-1b": (16, 32, 8, 2048, 8192, 128256, True),
    "llama-3.1-8b": (32, 32, 8, 4096, 14336, 128256, False),
}


def benchmarks() -> Iterator[Benchmark]:
    if importlib.util.find_spec("torch") is None:
        return
    yield _promise("trace GPT-2 124M, two steps", lambda: _cpu_s(a_gpt2("gpt2")), GPT2_S)
    yield _promise("trace an 8B Llama shape, two steps", lambda: _in_a_child()["cpu_s"], LLAMA_S)


TABLES = ("trace-peers", "trace-fit", "trace-fit-parts", "trace-recordings")


def tables() -> dict[str, str]:
    if importlib.util.find_spec("torch") is None:
        return {}
    found = {"trace-peers": _peers(), **_closed_form()}
    if SNAPSHOTS.is_dir():
        found["trace-recordings"] = _recordings()
    return found


def _promise(name: str, subject: Callable[[], float], seconds: float) -> Benchmark:
    return Benchmark(name=name, subject=subject, peer_name="promise", peer=lambda: seconds, bar=1)


def _cpu_s(build: Callable[[], Any]) -> float:
    import brimful

    start_s = time.process_time()
    brimful.trace(build, gpu=GPU, settings="")
    return time.process_time() - start_s


def a_gpt2(name: str) -> Callable[[], Callable[[], None]]:
    """nanoGPT's training step of a GPT-2, with the model of examples/train_gpt2.py."""
    layers, heads, width, batch = GPT2[name]

    def build() -> Callable[[], None]:
        import torch

        model = _example().Gpt(layers=layers, heads=heads, width=width).to("cuda")
        adamw = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            ids = torch.randint(50304, (batch, 1024), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                _logits, loss = model(ids, ids)
            loss.backward()
            adamw.step()
            adamw.zero_grad(set_to_none=True)

        return step

    return build


def a_llama(name: str) -> Callable[[], Callable[[], None]]:
    """transformers' Llama in bf16, from its sizes alone."""
    layers, heads, key_heads, width, hidden, vocab, tied = LLAMA[name]

    def build() -> Callable[[], None]:
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=key_heads, vocab_size=vocab, tie_word_embeddings=tied, use_cache=False,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
        adamw = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            ids = torch.randint(vocab, (1, 2048), device="cuda")
            out = model(input_ids=ids, labels=ids)  # held to the end of the step, as in most loops
            out.loss.backward()
            adamw.step()
            adamw.zero_grad(set_to_none=True)

        return step

    return build


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("train_gpt2", ROOT / "examples" / "train_gpt2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _in_a_child() -> dict[str, float]:
    """The 8B trace in a separate process, to measure its memory."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.groups.trace"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- what others say of the same model


def _peers() -> str:
    from brimful.tracing import session  # noqa: F401  PyTorch is loaded before the clock starts

    rows = []
    for name, ask in (
        ("brimful trace", _ours),
        ("torch MemTracker, over our shim", _mem_tracker),
        ("torchinfo", _torchinfo),
        ("accelerate estimate-memory", _accelerate),
    ):
        start_s = time.process_time()
        answer, knows = ask()
        rows.append((name, answer, knows, f"{time.process_time() - start_s:.1f} s"))
    child = _in_a_child()
    host = f"with {child['rss_gib']:.1f} GiB of host memory"
    rows.append(("brimful trace, 8B Llama shape", _gib(child["allocated"]), host, f"{child['cpu_s']:.1f} s"))
    return markdown(("Tool, GPT-2 124M, 12 x 1,024 tokens", "Its answer", "What it counts", "CPU"), rows)


def _ours() -> tuple[str, str]:
    import brimful

    peak = brimful.trace(a_gpt2("gpt2"), gpu=GPU, settings="")
    reserved = f"{_gib(peak.allocated_bytes)} allocated, {_gib(peak.reserved_bytes)} reserved"
    return reserved, "all that is allocated, in blocks and segments"


def _mem_tracker() -> tuple[str, str]:
    from torch.distributed._tools.mem_tracker import MemTracker

    from brimful.specs.gpu import find_gpu
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording

    tracker = MemTracker()
    with recording(cuda_device(find_gpu(GPU)), steps=99) as recorder:
        recorder.paused = 1
        with tracker:
            step = a_gpt2("gpt2")()
            step()
            tracker.reset_mod_stats()  # required before a second step
            step()
    peak = tracker.get_tracker_snapshot("peak")
    return _gib(max(parts["Total"] for parts in peak.values())), "tensors, without rounding or reserve"


def _torchinfo() -> tuple[str, str]:
    import torch
    import torchinfo

    ids = torch.zeros((12, 1024), dtype=torch.long, device="meta")
    with torch.device("meta"):
        model = _example().Gpt()
    found = torchinfo.summary(model, input_data=(ids, ids), device="meta", verbose=0)
    return _gib(found.total_output_bytes + found.total_param_bytes), "module outputs x 2 in fp32, and weights"


def _accelerate() -> tuple[str, str]:
    import torch
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        model = _example().Gpt()
    total, _ = calculate_maximum_sizes(model)
    steps = estimate_training_usage(total, "float32")
    return _gib(max(steps.values())), "weights x 4, whatever the batch"


# ---- the closed form


# Columns of the comparison -> the items of the closed form and of the trace that belong there.
PARTS = {
    "Weights": ("weights", "weight_casts"),
    "Optimizer": ("optimizer_state", "gradients"),
    "Logits and loss": ("logits_loss",),
    "Activations": ("activations", "temporaries", "kernel_buffers", "data", "buffers"),
    "Workspaces": ("workspaces",),
    "Rounding": ("rounding",),  # the closed form has it in its allocator cache, beyond allocated bytes
}


def _closed_form() -> dict[str, str]:
    """Allocated bytes of both, and a breakdown of the difference."""
    import brimful
    from brimful.fit.fit import estimate
    from brimful.specs.gpu import find_gpu

    rows, parts = [], []
    for name, build in (*((n, a_gpt2(n)) for n in GPT2), *((n, a_llama(n)) for n in LLAMA)):
        model, training = _closed_case(name)
        closed = estimate(model, training, find_gpu("b200"), correction=None).memory
        traced = brimful.trace(build, gpu="b200", settings="")
        likely = closed.allocated_bytes.likely
        batch = f"{training.batch_size} x {training.sequence_tokens:,}"
        gap = f"{likely / traced.allocated_bytes - 1:+.1%}"
        rows.append((name, batch, _gib(traced.allocated_bytes), _gib(likely), gap))
        ours, theirs = _by_part(traced.items), _by_part(closed.items)
        sums = [f"{round((theirs[part] - ours[part]) / MIB):+,} MiB" for part in PARTS]
        parts.append((name, *sums, f"{round((likely - traced.allocated_bytes) / MIB):+,} MiB"))
    return {
        "trace-fit": markdown(("Model", "Batch", "Traced", "Closed form", "Difference"), rows),
        "trace-fit-parts": markdown(("Closed form less traced", *PARTS, "Sum"), parts),
    }


def _closed_case(name: str) -> tuple[Any, Any]:
    """The same model and loop in the closed form's terms."""
    from dataclasses import replace

    from brimful.specs.framework import find_framework
    from brimful.specs.presets import find_preset
    from brimful.specs.training import Training

    model = find_preset(name).model
    if name in GPT2:
        model = replace(model, vocab=50304, bias=False, dropout=0.0, attention_dropout=0.0, gelu_tensors=1)
        return model, Training(
            batch_size=GPT2[name][3], sequence_tokens=1024, accumulation=1, dtype="bfloat16", compiled=False,
            casts="autocast",
        )  # fmt: skip
    return model, Training(
        batch_size=1, sequence_tokens=2048, accumulation=1, dtype="bfloat16", compiled=False, casts="none",
        framework=find_framework("transformers"),
    )  # fmt: skip


def _by_part(items: Any) -> dict[str, int]:
    found = dict.fromkeys(PARTS, 0)
    for item in items:
        code = "activations" if item.code.startswith("activations_") else item.code
        part = next((part for part, codes in PARTS.items() if code in codes), None)
        if part is not None:
            found[part] += item.bytes
    return found


# ---- recordings


def _recordings() -> str:
    import brimful
    from tests.tracing import decoder, programs

    peak = brimful.trace(programs.attention_by_hand, gpu="rtx-4090", settings="")
    rows = [_compared("silmont__mem_snapshot", peak.tape, 0, None)]
    cases = [
        ("wedsonlin__medium_128_training", decoder.train, 128, False),
        ("wedsonlin__medium_1024_training", decoder.train, 1024, True),
        ("wedsonlin__medium_128_inference", decoder.infer, 128, False),
        ("wedsonlin__medium_256_inference", decoder.infer, 256, False),
        ("wedsonlin__medium_1024_inference", decoder.infer, 1024, False),
    ]
    for name, program, tokens, autocast in cases:
        tape, marks = _marked(program, tokens=tokens, autocast=autocast)
        rows.append(_compared(name, tape, marks[0], marks[1]))
    header = ("Recording", "Requests in order", "Peak requested", "Peak allocated", "Reserved at the end")
    return markdown(header, rows)


def _marked(program: Any, **how: Any) -> tuple[Any, list[int]]:
    from brimful.specs.gpu import find_gpu
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording

    marks: list[int] = []
    with recording(cuda_device(find_gpu("rtx-4090")), steps=99) as recorder:
        program(warm_up=5, mark=lambda: marks.append(len(recorder.tape.events)), **how)()
    return recorder.tape, marks


def _compared(name: str, tape: Any, begin: int, end: int | None) -> tuple[str, ...]:
    """Ours beside the recording's own numbers, over the events it covers."""
    from brimful.allocator import Allocator

    snapshot = json.loads(gzip.decompress((SNAPSHOTS / f"{name}.json.gz").read_bytes()))
    real = [e for e in snapshot["device_traces"][0] if e[0] in ("alloc", "free_completed")]
    end = begin + len(real) if end is None else end
    wanted = [e[2] for e in real if e[0] == "alloc"]
    made = [tape.blocks[n].bytes for action, n in tape.events[begin:end] if action == MALLOC]
    allocator, addresses = Allocator(), {}
    requested = allocated = 0
    for index, (action, number) in enumerate(tape.events[:end]):
        if action == MALLOC:
            addresses[number] = allocator.malloc(tape.blocks[number].bytes)
        elif action == FREE:
            allocator.free(addresses.pop(number))
        if index >= begin:
            requested = max(requested, allocator.requested_bytes)
            allocated = max(allocated, allocator.allocated_bytes)
    from brimful.allocator.replay import replay

    replayed = replay(SNAPSHOTS / f"{name}.json.gz").as_dict()
    same = sum(a == b for a, b in zip(wanted, made, strict=False))
    return (
        name,
        f"{same:,} of {len(wanted):,}",
        _against(requested, _peak_requested(snapshot)),
        _against(allocated, replayed["peak_allocated_bytes"]),
        _against(allocator.reserved_bytes, replayed["reserved_bytes"]["recorded"]),
    )


def _peak_requested(snapshot: Any) -> int:
    now = sum(b[2] for s in snapshot["segments"] for b in s["blocks"] if b[3] != "inactive")
    events = snapshot["device_traces"][0]
    peak = now
    for event in reversed(events):
        if event[0] == "alloc":
            peak = max(peak, now)
            now -= event[2]
        elif event[0] == "free_completed":
            now += event[2]
    return int(peak)


def _against(ours: int, theirs: int) -> str:
    return f"{ours:,} exact" if ours == theirs else f"{ours:,} ({ours / theirs - 1:+.2%})"


def _gib(n: float) -> str:
    return f"{n / GIB:.2f} GiB"


def _alone() -> None:
    """What `_in_a_child` starts: one 8B trace, with its time, peak host memory and answer."""
    import brimful
    from brimful.tracing import session  # noqa: F401  PyTorch is loaded before the clock starts

    build = a_llama("llama-3.1-8b")
    start_s = time.process_time()
    peak = brimful.trace(build, gpu="b200", settings="")
    spent_s = time.process_time() - start_s
    rss_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(json.dumps({"cpu_s": spent_s, "rss_gib": rss_gib, "allocated": peak.allocated_bytes}))


if __name__ == "__main__":
    _alone()
