"""`brimful gpus`: the cards brimful knows, or one of them with the sources of its numbers."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.cli.render import paint, table
from brimful.language import Size, say, told, tongue, words
from brimful.specs.gpu import Gpu, all_gpus, find_gpu

EXAMPLE = """brimful gpus
brimful gpus 4070
brimful gpus "NVIDIA A100-SXM4-80GB" --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?")


def run(args: argparse.Namespace) -> Answer:
    if args.name is not None:
        gpu = find_gpu(args.name)
        return Answer(gpu.as_dict(), _one(gpu))
    gpus = all_gpus()
    return Answer({"gpus": [gpu.as_dict() for gpu in gpus]}, _list(gpus))


def _list(gpus: tuple[Gpu, ...]) -> str:
    name, year, memory, link = map(words, ("gpu.name", "gpu.gpus_year", "gpu.gpus_memory", "gpu.gpus_link"))
    formats = ("fp32", "fp16", "bf16", "fp8")
    rows = [
        (
            gpu.name,
            str(gpu.year),
            told(Size(gpu.memory_bytes)) + ("" if gpu.memory_basis == "seen" else " ~"),
            f"{gpu.bandwidth_bytes_per_s / 1e9:.0f}",
            *(_tera(gpu.dense_flops_per_s.get(number)) for number in formats),
            _link(gpu),
        )
        for gpu in gpus
    ]
    shown = table((name, year, memory, "GB/s", *formats, link), rows, right=(1, 3, 4, 5, 6, 7))
    return "\n".join([shown, "", words("gpu.gpus_legend", n=len(gpus)), words("gpu.gpus_more")])


def _achievable(gpu: Gpu) -> str:
    if gpu.achievable_flops_per_s is None:
        return words("gpu.gpus_unknown")
    tflops = _tera(gpu.achievable_flops_per_s)
    if gpu.clocked_like:
        return words("gpu.gpus_derived", tflops=tflops, name=gpu.clocked_like, n=gpu.board_watts)
    return words("gpu.gpus_measured", tflops=tflops, number="bf16" if gpu.bf16 else "fp16")


def _one(gpu: Gpu) -> str:
    peaks = ", ".join(f"{number} {_tera(flops)}" for number, flops in gpu.dense_flops_per_s.items())
    lines = {
        "memory": words(
            "gpu.gpus_visible", size=Size(gpu.memory_bytes), basis=say(f"gpu.gpus_{gpu.memory_basis}")
        ),
        "bandwidth": _giga(gpu.bandwidth_bytes_per_s),
        "peak": f"{peaks} TFLOPS",
        "achievable": _achievable(gpu),
        "bf16": words("gpu.gpus_has_bf16" if gpu.bf16 else "gpu.gpus_no_bf16"),
        "link": _link(gpu),
        "processors": told(gpu.processors),
        "aliases": ", ".join(gpu.aliases),
        "note": gpu.note,
        "source": gpu.source,
    }
    shown = {name if name == "bf16" else words(f"gpu.gpus_{name}"): text for name, text in lines.items()}
    width = max(map(len, shown))
    body = [f"  {label:<{width}}  {text}" for label, text in shown.items() if text]
    head = f"{paint(gpu.name, 'bold')}  {gpu.title}  ({gpu.vendor} {gpu.architecture}, {gpu.year})"
    return "\n".join([head, *body])


def _tera(flops_per_s: float | None) -> str:
    return "-" if flops_per_s is None else tongue().plain(flops_per_s / 1e12)


def _giga(bytes_per_s: float) -> str:
    return f"{tongue().plain(bytes_per_s / 1e9)} GB/s"


def _link(gpu: Gpu) -> str:
    kind = "NVLink" if gpu.vendor == "NVIDIA" else "Infinity Fabric"
    fast = f"{kind} {_giga(gpu.link_bytes_per_s)}" if gpu.link_bytes_per_s else ""
    pcie = f"PCIe {gpu.pcie_generation}" if gpu.pcie_generation else ""
    return " + ".join(part for part in (pcie, fast) if part)
