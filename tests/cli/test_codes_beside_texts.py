"""Every text of an answer in JSON has a code beside it: what changes with the language identifies nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.main import main

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
FINEWEB = str(EXAMPLES / "nanogpt" / "train_fineweb.py")
GPT2 = ["--model", "gpt2", "--gpu", "rtx-4070"]
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.69 GiB"
MEASURED = ["--measured-mfu", "0.9", "--measured-tokens-per-s", "9e4", "--measured-peak-gib", "10"]
OTHER_NAMES = {
    "warnings": "warning_codes",
    "title": "kind",
    "change": "fixes",
    "name": "code",
}  # what identifies some texts


def texts_without_codes(one: Any, other: Any, at: str = "$") -> Iterator[str]:
    """Where the answers in two languages differ, and nothing beside them is the same in both."""
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key, value in one.items():
            beside = {"reason", f"{key}_code", f"{key}_codes", OTHER_NAMES.get(key, "")} & one.keys()
            codes = next((one[each] for each in beside), None)
            whole = len(codes) == len(value) if isinstance(codes, list) and isinstance(value, list) else codes
            strings = isinstance(value, str) or (
                isinstance(value, list) and isinstance((value or [0])[0], str)
            )
            if not strings:
                yield from texts_without_codes(value, other[key], f"{at}.{key}")
            elif value != other[key] and not whole:
                yield f"{at}.{key}"
    elif isinstance(one, list):
        assert len(one) == len(other)
        for number, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from texts_without_codes(mine, its, f"{at}[{number}]")


@pytest.mark.parametrize(
    "words",
    [
        ["fit", *GPT2],
        ["fit", "--model", "gpt2", "--gpu", "all"],
        ["fit", *GPT2, "--batch-size", "64", "--compare", "batch_size=2"],
        ["fit", *GPT2, *MEASURED],
        ["claims", FINEWEB, "--gpu", "rtx-4070"],
        ["claims", FINEWEB, "--gpu", "rtx-4070", "--text", str(EXAMPLES / "advice.txt")],
        ["explain", "oom.log"],
        ["explain", "oom.log", "--config", FINEWEB, "--gpu", "rtx-4070"],
        ["explain", "nothing.log"],
        ["sweep", *GPT2, "--batch-size", "1:4"],
        ["sweep", *GPT2, "--seq-len", "128,1024"],
    ],
    ids=lambda words: " ".join(word.rpartition("/")[2] for word in words),
)
def test_what_changes_with_the_language_has_a_code_that_does_not(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("oom.log").write_text(OOM)
    Path("nothing.log").write_text("hello")
    answers = []
    for language in ("en", "de"):
        main([*words, "--json", "--lang", language])
        answers.append(json.loads(capsys.readouterr().out)["data"])
        assert answers[-1].pop("language", language) == language
    assert answers[0] != answers[1], "nothing was said"
    assert list(texts_without_codes(*answers)) == []
