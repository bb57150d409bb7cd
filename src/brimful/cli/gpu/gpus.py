"""`brimful gpus`: the cards brimful knows, or one of them with where its numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.cli.commands import Answer
from brimful.cli.render import paint, table
from brimful.units import show_bytes

if TYPE_CHECKING:
    import argparse

    from brimful.specs.gpu import Gpu

EXAMPLE = """brimful gpus
brimful gpus 4070
brimful gpus "NVIDIA A100-SXM4-80GB" --json"""

_BASIS = {
    "seen": "read off a framework's own output",
    "recalled": "from general knowledge, not looked up",
    "estimated": "a share of nominal that comparable cards show, nobody's measurement",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?")


def run(args: argparse.Namespace) -> Answer:
    from brimful.specs.gpu import all_gpus, find_gpu

    if args.name is not None:
        gpu = find_gpu(args.name)
        return Answer(gpu.as_dict(), _one(gpu))
    gpus = all_gpus()
    return Answer({"gpus": [gpu.as_dict() for gpu in gpus]}, _list(gpus))


def _list(gpus: tuple[Gpu, ...]) -> str:
    header = ("name", "year", "memory", "GB/s", "fp32", "fp16", "bf16", "fp8", "link")
    rows = [
        (
            gpu.name,
            str(gpu.year),
            show_bytes(gpu.memory_bytes) + ("" if gpu.memory_basis == "seen" else " ~"),
            f"{gpu.bandwidth_bytes_per_s / 1e9:.0f}",
            *(_tflops(gpu, number) for number in ("fp32", "fp16", "bf16", "fp8")),
            _link(gpu),
        )
        for gpu in gpus
    ]
    return "\n".join(
        [
            table(header, rows, right=(1, 3, 4, 5, 6, 7)),
            "",
            f"{len(gpus)} GPUs. Peaks are dense TFLOPS with fp32 accumulate; memory is what a framework sees",
            "(~ not read off one: recalled or estimated). `brimful gpus NAME` shows the sources.",
        ]
    )


def _one(gpu: Gpu) -> str:
    peaks = ", ".join(f"{number} {flops / 1e12:g}" for number, flops in gpu.dense_flops_per_s.items())
    achievable = gpu.achievable_flops_per_s
    lines = [
        ("memory", f"{show_bytes(gpu.memory_bytes)} visible to a framework ({_BASIS[gpu.memory_basis]})"),
        ("bandwidth", f"{gpu.bandwidth_bytes_per_s / 1e9:g} GB/s"),
        ("dense peak", f"{peaks} TFLOPS"),
        (
            "achievable",
            f"{achievable / 1e12:g} TFLOPS measured in bf16" if achievable else "unknown",
        ),
        ("bf16", "yes, in hardware" if gpu.bf16 else "no: emulated at best, train in float16"),
        ("link", _link(gpu)),
        ("processors", str(gpu.processors)),
        ("also called", ", ".join(gpu.aliases)),
        ("note", gpu.note),
        ("source", gpu.source),
    ]
    body = [f"  {label:<11}  {text}" for label, text in lines if text]
    head = f"{paint(gpu.name, 'bold')}  {gpu.title}  ({gpu.vendor} {gpu.architecture}, {gpu.year})"
    return "\n".join([head, *body])


def _tflops(gpu: Gpu, number: str) -> str:
    peak = gpu.dense_flops_per_s.get(number)
    return "-" if peak is None else f"{peak / 1e12:g}"


def _link(gpu: Gpu) -> str:
    kind = "NVLink" if gpu.vendor == "NVIDIA" else "Infinity Fabric"
    fast = f"{kind} {gpu.link_bytes_per_s / 1e9:g} GB/s" if gpu.link_bytes_per_s else ""
    pcie = f"PCIe {gpu.pcie_generation}" if gpu.pcie_generation else ""
    return " + ".join(part for part in (pcie, fast) if part)
