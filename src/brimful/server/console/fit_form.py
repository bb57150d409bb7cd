"""Choices and values of the Fit form, for the console and for the page without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from brimful.server.fitting import MOST_CARDS
from brimful.specs.gpu import all_gpus
from brimful.specs.presets import all_presets

USUAL = ("rtx-4090", "h100-sxm-80gb")  # cards selected at first
TRIES = (
    ("gpt2-xl", ("rtx-4070", "rtx-4090"), "batch_size=8 seq_len=1024"),
    ("llama-3.1-8b", ("rtx-4090", "h100-sxm-80gb"), "batch_size=4 seq_len=4096"),
    ("qwen3-8b", ("rtx-3090", "l40s"), "lora=True batch_size=2 seq_len=2048"),
)


def form_values(given: Mapping[str, Any], *, page: str) -> dict[str, Any]:
    """What the form's templates need; `page` is the URL that its links start with."""
    return {
        "given": given,
        "link": link_to(given, page),
        "gpus": sorted(all_gpus(), key=lambda gpu: (gpu.vendor.lower() != "nvidia", -gpu.year)),
        "models": [preset.model.name for preset in all_presets()],
        "tries": [
            (model, link_to(as_given(model=model, gpus=gpus, settings=sets), page))
            for model, gpus, sets in TRIES
        ],
        "most_cards": MOST_CARDS,
    }


def as_given(*, model: str = "", gpus: Sequence[str] = (), settings: str = "") -> dict[str, Any]:
    """The form as a URL fills it in."""
    given = dict.fromkeys(("config", "text", "other_mib"), "")
    return {**given, "model": model, "settings": settings, "gpus": list(gpus or USUAL)}


def split_settings(typed: str) -> tuple[str, ...]:
    return tuple(typed.replace(",", " ").split())


def link_to(given: Mapping[str, Any], page: str) -> str:
    """A link to the same answer, if a URL can hold it: a pasted text does not belong in a browser history."""
    if given["config"] or given["text"] or given["other_mib"] or not given["model"]:
        return ""
    asked = [("model", given["model"]), *(("gpu", gpu) for gpu in given["gpus"])]
    return f"{page}?" + urlencode([*asked, *([("set", given["settings"])] if given["settings"] else [])])
