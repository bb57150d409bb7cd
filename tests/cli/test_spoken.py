"""Every way through the commands that speak four languages is told from the catalogs, errors included.

The commands run in a made-up language that marks whatever comes from a catalog: ⟦like this⟧. What stands
outside the marks must be a number, a unit, a name, or a word of the user's own files. A sentence that
somebody prints past the catalogs is red here, in whatever way it was put together.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brimful
from brimful.cli.main import main
from brimful.fleet.job import PRIORITIES
from brimful.language import Language, choose, language
from brimful.language.catalog import template
from brimful.scheduler.policies import DEFAULT, POLICIES
from brimful.specs.framework import all_frameworks
from brimful.specs.gpu import all_gpus
from brimful.specs.presets import all_presets
from tests.fit.builders import a_training

ROOT = Path(__file__).resolve().parents[2]
NANOGPT = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
MESSAGES = tomllib.loads((ROOT / "tests/diagnose/messages.toml").read_text(encoding="utf-8"))
PAPER = ["--gpu", "rtx-4070", "--other-mib", "2100"]

# Words that are the same in every language: units, number formats, names of programs, counters and settings.
TECHNICAL = set(
    """
    MFU TFLOPS TFLOP GiB MiB KiB bf16 fp16 fp32 tf32 fp8 int8 bfloat16 float16 float32 dense selective full
    none CUDA HIP XPU MPS DirectML XLA Metal GPU GPUs NVIDIA GeForce RTX Tesla SXM PCIe HBM AMD Instinct Ti
    Titan MIG allocated reserved requested device mfu tokens_per_s peak_bytes tokens nvidia smi torch cuda
    max_memory_allocated max_memory_reserved nanoGPT nanochat torchtitan llm Hugging Face Trainer vLLM
    llama cpp adamw AdamW fused flash batch_size gradient_accumulation_steps checkpointing loss_chunks compile
    dtype vocab_size attention optimizer gpus seq_len True False None model train py json yaml csv toml MLP
    nanotron LoRA zero3 zero2 zero1 ddp adam8bit per_device_train_batch_size gradient_checkpointing max_length
    torch_dtype optim in forward backward main PYTORCH_CUDA_ALLOC_CONF expandable_segments brimful config
    kernel workspace BLAS embedding place Gpt layers head liger use_liger_kernel attn_implementation sdpa
    eager precision torch_compile sharding ms min amp current rank targets in_backward offload_states qlora
    efficient bias block_size dropout adamw_torch_fused pytorch litgpt transformers torchtune html png svg
    swift batch A100 H100 P100 TensorFlow tqdm GB SXM4 HBM3 lora_r lora deepspeed ZeRO
    """.split()  # noqa: SIM905 - a list this long is read as words
)
MARKED = re.compile(r"⟦[^⟦⟧]*⟧")
WORD = re.compile(r"[A-Za-zÀ-ÿ_][\wÀ-ÿ]+")


class Marked:
    """A catalog whose every literal piece is marked; what is filled in stays outside the marks."""

    def __call__(self, code: str) -> str:
        text = template(code, "en")
        text = text if isinstance(text, str) else text["other"]
        pieces = re.split(r"(\{\w+\})", text)
        return "".join(piece if i % 2 or not piece else f"⟦{piece}⟧" for i, piece in enumerate(pieces))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = Language(
        code="xx",
        decimal=",",
        group=".",
        least_grouped=1000,
        space=" ",
        byte_units=("GiB", "MiB", "KiB", "B"),
        template=Marked(),
    )
    monkeypatch.setattr("brimful.language.spoken.language", lambda _: made_up)
    monkeypatch.setenv("COLUMNS", "2000")  # a line break inside a mark would hide a word


def left_over(text: str, *own: str) -> set[str]:
    """Words outside the marks that are neither technical nor the user's own."""
    for _ in range(3):  # a mark within a mark
        text = MARKED.sub(" ", text)
    plain = re.sub(r"\bx\d", " ", text)  # x1,23: how many times as much
    theirs = {word.lower() for one in own for word in WORD.findall(one)} | {w.lower() for w in TECHNICAL}
    return {word for word in WORD.findall(plain) if word.lower() not in theirs}


def names() -> list[str]:
    """Cards, frameworks and models, as the catalogs of facts name them."""
    cards = [word for gpu in all_gpus() for word in (gpu.name, gpu.title)]
    cards += [framework.name for framework in all_frameworks()]
    return cards + [word for preset in all_presets() for word in (preset.model.name, preset.title)]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main([*words, "--lang", "fr"])
    captured = capsys.readouterr()
    assert "⟦" in captured.out + captured.err, words
    return captured.out + captured.err


FITS: dict[str, list[str]] = {
    "does not fit": [NANOGPT, *PAPER],
    "fits": [NANOGPT, "--gpu", "h100"],
    "faster": [NANOGPT, "--gpu", "rtx-4070", "--set", "compile=False", "--set", "dtype=float32"],
    "ladder": [NANOGPT, *PAPER, "--ladder"],
    "ladder that never fits": ["--model", "llama-3.1-8b", "--gpu", "rtx-4070", "--ladder"],
    "compare": [NANOGPT, *PAPER, "--compare", "batch_size=12", "compile=False", "batch_size=4"],
    "write": [NANOGPT, *PAPER, "--write", "--dry-run"],
    "measured": [NANOGPT, "--gpu", "4070", "--measured-mfu", "0.1", "--measured-tokens-per-s", "70000"],
    "unusual": [NANOGPT, "--gpu", "4070", "--measured-mfu", "0.9", "--measured-tokens-per-s", "99000"],
    "impossible": [NANOGPT, "--gpu", "4070", "--measured-mfu", "7", "--measured-tokens-per-s", "1e6"],
    "peak": [NANOGPT, "--gpu", "4070", "--measured-peak-gib", "10.5"],
    "peak below": [NANOGPT, "--gpu", "4070", "--measured-peak-gib", "6"],
    "peak above": [NANOGPT, "--gpu", "h100", "--measured-peak-gib", "60"],
    "peak too small": [NANOGPT, "--gpu", "4070", "--measured-peak-gib", "0.2"],
    "peak of nvidia-smi": [NANOGPT, "--gpu", "4070", "--measured-peak-gib", "11.9", "--set", "batch_size=2"],
    "peak too large": [NANOGPT, "--gpu", "4070", "--measured-peak-gib", "99"],
    "models": ["--models"],
    "every card": [NANOGPT, "--gpu", "all"],
    "serving": ["--model", "llama-3.1-8b", "--gpu", "4090", "--inference"],
    "serving that does not fit": ["--model", "llama-3.1-8b", "--gpu", "4070", "--inference"],
    "serving on every card": ["--model", "llama-3.1-8b", "--gpu", "all", "--inference"],
    "many GPUs": ["--model", "llama-3.1-8b", "--gpu", "h100", "--gpus", "8", "--sharding", "zero3"],
    "adapter": ["--model", "llama-3.1-8b", "--gpu", "4090", "--qlora", "--framework", "torchtune"],
    "guessed": ["--model", "gpt2", "--gpu", "4090", "--optimizer", "sparkle", "--attention", "moonbeam"],
    "old card": [NANOGPT, "--gpu", "p100-pcie-16gb"],
    "odd vocabulary": [NANOGPT, "--gpu", "v100-sxm-16gb", "--set", "vocab_size=50257"],
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.usefixtures("marked")
def test_fit_says_nothing_past_the_catalogs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "fit", *FITS[name])

    assert not left_over(text, *names(), *FITS[name])


EXAMPLES = ROOT / "examples"
FLEETS: dict[str, list[str]] = {
    "compared": ["simulate", str(EXAMPLES / "small.csv"), "--policy", "fifo", "--policy", "brim"],
    "swept": ["simulate", str(EXAMPLES / "small.csv"), "--sweep", "gpus=8,16", "--seeds", "2"],
    "filled": [
        *("simulate", str(EXAMPLES / "fill_nodes.csv"), str(EXAMPLES / "fill_pods.csv")),
        *("--fill", "1.3", "--policy", "brim"),
    ],
    "submitted": ["submit", "--dry-run", "--gpu", "h100", "--fit", NANOGPT, "--", "true"],
    "too large": ["submit", "--dry-run", "--gpu", "4070", "--fit", NANOGPT, "--", "true"],
    "no such policy": ["simulate", str(EXAMPLES / "small.csv"), "--policy", "moon"],
    "no such fleet": ["simulate", str(EXAMPLES / "small.csv"), "--fleet", "moon"],
}


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.usefixtures("marked")
def test_fleets_say_nothing_past_the_catalogs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = FLEETS[name][:-2] if "--" in FLEETS[name] else FLEETS[name]
    main([*given, "--lang", "fr", *FLEETS[name][len(given) :]])
    captured = capsys.readouterr()
    text = captured.out + captured.err

    assert "⟦" in text
    assert not left_over(text, *names(), *FLEETS[name], *POLICIES, DEFAULT, *PRIORITIES, str(Path.cwd()))


CONFIGS = {
    "strange.py": "n_layer = 4\nn_head = 4\nn_embd = 256\nsparkle = 3\nimport os\ndataset = 'novel_char'\n",
    "letters.py": "n_layer = 4\nn_head = 4\nn_embd = 256\ndataset = 'shakespeare_char'\n",
    "pretrained.py": "init_from = 'gpt2-medium'\nbatch_size = 4\n",
    "config.json": json.dumps(
        {"model_type": "novel", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
         "vocab_size": 32000, "torch_dtype": "bfloat16"}
    ),
    "wide.json": json.dumps(
        {"text_config": {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4,
         "num_attention_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5}}
    ),
}  # fmt: skip
ARGUMENTS = {
    "args.json": {"per_device_train_batch_size": 2, "optim": "sparkle", "max_length": 99999,
                  "fsdp": "strange",                  "moon_beam": 1},
    "deep.json": {"per_device_train_batch_size": 2, "deepspeed": "absent.json", "attn_implementation": "odd"},
    "stage.json": {"deepspeed": {"zero_optimization": {"stage": 9}}, "bf16": True},
}  # fmt: skip


@pytest.mark.parametrize("name", [*CONFIGS, *ARGUMENTS])
@pytest.mark.usefixtures("marked")
def test_what_readers_warn_of_is_in_the_catalogs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIGS.get(name) or json.dumps(ARGUMENTS[name])
    (tmp_path / name).write_text(text)
    config = ["--model", "gpt2", "--args"] if name in ARGUMENTS else []

    told_so = said(capsys, "fit", *config, str(tmp_path / name), "--gpu", "4090")
    assert not left_over(
        told_so, text, name, "novel gpt2 llama letters pretrained strange deepspeed ZeRO transformers"
    )


BAD: dict[str, list[str]] = {
    "no file": ["fit", "absent.py", "--gpu", "rtx-4070"],
    "folder": ["fit", ".", "--gpu", "rtx-4070"],
    "binary": [
        "fit",
        str(ROOT / "src/brimful/language/locale/fr/LC_MESSAGES/brimful.mo"),
        "--gpu",
        "rtx-4070",
    ],
    "no such card": ["fit", NANOGPT, "--gpu", "rtx-9999"],
    "which card": ["fit", NANOGPT, "--gpu", "a100"],
    "card of another size": ["fit", NANOGPT, "--gpu", "RTX 4090 12GB"],
    "no card": ["fit", NANOGPT],
    "other-mib": ["fit", NANOGPT, "--gpu", "rtx-4070", "--other-mib", "-1"],
    "other-mib is no number": ["fit", NANOGPT, "--gpu", "rtx-4070", "--other-mib", "many"],
    "too large": ["fit", NANOGPT, "--gpu", "rtx-4070", "--set", "n_layer=10**30"],
    "nothing": ["fit", "--gpu", "rtx-4070"],
    "no such model": ["fit", "--gpu", "rtx-4070", "--model", "gpt5"],
    "which model": ["fit", "--gpu", "rtx-4070", "--model", "llama"],
    "both": ["fit", NANOGPT, "--gpu", "rtx-4070", "--model", "gpt2"],
    "args of a .py": ["fit", NANOGPT, "--gpu", "rtx-4070", "--args", NANOGPT],
    "negative": ["fit", "--gpu", "rtx-4070", "--model", "gpt2", "--batch-size", "-4"],
    "long": ["fit", "--gpu", "rtx-4070", "--model", "gpt2", "--seq-len", "4096"],
    "no lines": ["fit", "--gpu", "rtx-4070", "--model", "gpt2", "--patch"],
    "dry-run alone": ["fit", NANOGPT, "--gpu", "rtx-4070", "--dry-run"],
    "no measurement": ["fit", NANOGPT, "--gpu", "rtx-4070", "--measured-mfu", "-1"],
    "no such fix": ["fit", NANOGPT, *PAPER, "--patch", "--fix", "99"],
    "fix of the code": ["fit", NANOGPT, *PAPER, "--patch", "--fix", "2"],
    "no such word": ["fit", NANOGPT, "--gpu", "rtx-4070", "--set", "sparkle=3"],
    "near word": ["fit", NANOGPT, "--gpu", "rtx-4070", "--set", "batchsize=3"],
    "no pair": ["fit", NANOGPT, "--gpu", "rtx-4070", "--set", "sparkle"],
    "two questions": ["fit", NANOGPT, "--gpu", "all", "--ladder"],
    "prices alone": ["fit", NANOGPT, "--gpu", "4070", "--prices", "p.toml"],
    "no prices": ["fit", NANOGPT, "--gpu", "all", "--prices", "absent.toml"],
    "encoder": ["fit", "--model", "bert-base-uncased", "--gpu", "4070", "--inference"],
    "prompts": ["fit", "--model", "gpt2", "--gpu", "4070", "--inference", "--prompt-tokens", "0"],
    "framework": ["fit", "--model", "gpt2", "--gpu", "4070", "--framework", "sparkle"],
    "torch": ["fit", "--model", "gpt2", "--gpu", "4070", "--torch", "sparkle"],
    "split": ["fit", "--model", "gpt2", "--gpu", "4070", "--set", "tensor=8"],
    "strange option": ["fit", NANOGPT, "--gpu", "4070", "--sparkle"],
    "no value": ["fit", NANOGPT, "--gpu"],
    "after dashes": ["fit", NANOGPT, "--gpu", "4070", "--", "words"],
    "explain nothing": ["explain", "absent.log"],
    "explain a folder": ["explain", "."],
    "set alone": ["explain", NANOGPT, "--set", "batch_size=3"],
    "claims without card": ["claims", NANOGPT],
    "claims of nothing": ["claims", NANOGPT, "--gpu", "4070", "--text", "absent.txt"],
    "no range": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "x:y"],
    "backwards": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "9:2"],
    "too many": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "1:9999"],
    "no picture": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "1:3", "--plot", "sweep.doc"],
    "no folder": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "1:3", "--plot", "absent/sweep.svg"],
    "trace nothing": ["trace", "absent.py", "--gpu", "4070"],
    "no allocator option": ["trace", NANOGPT, "--gpu", "4070", "--conf", "sparkle:3"],
    "no allocator value": ["trace", NANOGPT, "--gpu", "4070", "--conf", "max_split_size_mb:few"],
    "another allocator": ["trace", NANOGPT, "--gpu", "4070", "--conf", "backend:cudaMallocAsync"],
    "no steps": ["trace", NANOGPT, "--gpu", "4070", "--steps", "0"],
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.usefixtures("marked")
def test_errors_are_in_the_catalogs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *BAD[name])

    assert not left_over(text, *names(), *told_settings(), *BAD[name])


def told_settings() -> list[str]:
    """Words of `--set`, which an error lists."""
    from brimful.configs.arguments import DEFAULTS as ARGUMENTS_KNOWN
    from brimful.configs.nanogpt import DEFAULTS
    from brimful.configs.settings import WORDS

    return [*WORDS, *DEFAULTS, *ARGUMENTS_KNOWN]


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.usefixtures("marked")
def test_explanations_are_in_the_catalogs(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in MESSAGES[kind]:
        (tmp_path / "text").write_text(row["text"])
        for more in ([], ["--config", NANOGPT, "--gpu", "rtx-4070"]):
            text = said(capsys, "explain", str(tmp_path / "text"), *more)
            assert not left_over(text, row["text"], NANOGPT, *names()), row["source"]


@pytest.mark.usefixtures("marked")
def test_what_is_no_message_is_answered_from_the_catalogs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("hello")

    assert not left_over(said(capsys, "explain", str(tmp_path / "text")))


PASTE = """Use these settings, it never fails:
batch_size = 12
gradient_accumulation_steps = 40
compile = False
dtype = 'float16'
batch_size = -3
optimizer = sparkle
A full card is a busy card. Pad the vocabulary. Use gradient checkpointing and 8-bit Adam.
"""


@pytest.mark.usefixtures("marked")
def test_claims_are_in_the_catalogs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "paste").write_text(PASTE)
    for card in ("rtx-4070", "h100", "p100-pcie-16gb"):
        assert not left_over(said(capsys, "claims", NANOGPT, "--gpu", card), NANOGPT, *names())
        text = said(capsys, "claims", NANOGPT, "--gpu", card, "--text", str(tmp_path / "paste"))
        assert not left_over(text, PASTE, NANOGPT, *names())


SWEEPS = [
    ["--batch-size", "1:32"],
    ["--seq-len", "256,1024,8192"],
    ["--batch-size", "400:410"],
    ["--batch-size", "1:8", "--seq-len", "512"],
]
GRID = ["--batch-size", "1:4", "--seq-len", "512,131072"]


@pytest.mark.parametrize("words", SWEEPS, ids=" ".join)
@pytest.mark.usefixtures("marked")
def test_sweeps_and_their_pages_are_in_the_catalogs(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "sweep.html"
    text = said(capsys, "sweep", NANOGPT, "--gpu", "rtx-4070", *words, "--plot", str(page))

    assert not left_over(text.replace(str(page), ""), NANOGPT)
    shown = re.sub(r"<svg.*?</svg>", "", page.read_text(), flags=re.DOTALL)
    assert not left_over(re.sub(r"<style.*?</style>|<[^>]*>", " ", shown, flags=re.DOTALL), NANOGPT)


@pytest.mark.usefixtures("marked")
def test_a_sweep_of_two_ranges_is_in_the_catalogs(capsys: pytest.CaptureFixture[str]) -> None:
    assert not left_over(said(capsys, "sweep", NANOGPT, "--gpu", "rtx-4070", *GRID), NANOGPT)


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    pytest.importorskip("torch")
    from brimful.tracing.launch import trace_script

    choose("de")
    return trace_script(
        ROOT / "examples" / "train_gpt2.py", ["--batch", "8"], gpu="rtx-4070", steps=2, limit_s=300
    )


def test_the_process_that_traces_writes_its_words_in_the_language_asked_for(traced: dict[str, Any]) -> None:
    for item in traced["items"]:
        assert item["why"] == language("de").sentence(item["reason"]["code"], {})
    (loss,) = (fix for fix in traced["fixes"] if fix["code"] == "loss")
    assert loss["change"] == language("de").sentence("tracing.change_loss_chunks", {})


@pytest.mark.usefixtures("marked")
def test_a_trace_is_in_the_catalogs(traced: dict[str, Any]) -> None:
    from brimful.cli.gpu.trace import show
    from brimful.specs.gpu import find_gpu

    failed = {"step": 1, "phase": "setup", "op": "mm", "line": "", "wanted_bytes": 2**31, "free_bytes": 2**30}
    notes = [{"code": "tracing.note_script_ended", "name": "KeyError"}]
    rough = {
        **traced,
        "fits": False,
        "mode": "rough",
        "steps": 1,
        "out_of_memory": failed,
        "note_codes": notes,
    }
    for data in (traced, rough):
        text = show({**data, "rules_fired": {}}, find_gpu("rtx-4070"), "train_gpt2.py")
        own = [holder["op"] for holder in data["top_holders"]] + list(data["modules"])
        assert not left_over(text.replace("\n", " "), "train_gpt2 mm KeyError", str(data["peak_at"]), *own)


@pytest.mark.usefixtures("marked")
def test_a_replay_is_in_the_catalogs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    from tests.allocator.recording import Recording, a_run

    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(a_run(Recording(), 300, seed=1).snapshot()))
    tried = "max_split_size_mb roundup_power2_divisions large_segment_size_mb train step export"
    for more in ([], ["--capacity", "80GiB"], ["--capacity", "40MiB"]):
        text = said(capsys, "replay", str(path), *more)
        assert not left_over(text, tried, "init", str(path)), more


@pytest.mark.parametrize("words", [[], ["4070"], ["h100"], ["p100-pcie-16gb"]], ids=str)
@pytest.mark.usefixtures("marked")
def test_the_list_of_cards_is_in_the_catalogs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    facts = [str(value) for gpu in all_gpus() for value in gpu.as_dict().values()]

    assert not left_over(said(capsys, "gpus", *words), "NVLink Infinity Fabric", *names(), *facts)


@pytest.mark.usefixtures("marked")
def test_scores_and_corrections_are_in_the_catalogs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.accuracy.test_calibrate import a_run, a_table

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    table = a_table(tmp_path / "runs.csv", [a_run(f"me-{b}", batch=b, memory=1.1) for b in (4, 8, 12)])
    for words in (["score"], ["calibrate"], ["calibrate", "--write"]):
        text = said(capsys, "runs", words[0], str(table), *words[1:])
        assert not left_over(text, "me", str(table), str(tmp_path / "brimful/calibration.json"))
    assert not left_over(said(capsys, "runs", "calibrate", "--forget"), str(tmp_path), "brimful calibration")


BOOK, SPOT, OFFERS = (str(ROOT / "examples" / name) for name in ("book.json", "spot.jsonl", "offers.csv"))
MONEY = {
    "clear": ["clear", BOOK],
    "no such book": ["clear", "absent.json"],
    "deadline": [
        "deadline",
        SPOT,
        "--zone",
        "a",
        "--task-hours",
        "9",
        "--deadline-hours",
        "12",
        "--starts",
        "2",
    ],
    "too early": ["deadline", SPOT, "--deadline-hours", "40"],
    "never": ["deadline", SPOT, "--task-hours", "0"],
    "where": ["where", NANOGPT, "--offers", OFFERS],
    "some places": ["where", "--model", "gpt2-xl", "--offers", OFFERS],
    "nowhere": ["where", "--model", "llama-3.1-8b", "--offers", OFFERS],
    "no tokens": ["where", NANOGPT, "--offers", OFFERS, "--tokens", "0"],
    "no log": ["ledger", "absent.jsonl"],
    "folder": ["ledger", "."],
    "no hours": ["price", "--hours", "nan"],
}


@pytest.mark.parametrize("name", MONEY)
@pytest.mark.usefixtures("marked")
def test_the_market_is_in_the_catalogs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(BOOK).read_text(), Path(OFFERS).read_text(), "synthetic made up brim spot nan e18"

    assert not left_over(said(capsys, "market", *MONEY[name]), *own, *names(), *MONEY[name])


BOOKS: dict[str, Any] = {
    "no list": 7,
    "no object": [7],
    "no name": [{"quantity": 1}],
    "no limit": [{"bid": "a", "quantity": 1}],
    "no count": [{"bid": "a", "quantity": 0, "limit": 1}],
    "no number": [{"bid": "a", "quantity": 1, "limit": "many"}],
    "no flag": [{"bid": "a", "quantity": 1, "limit": 1, "running": 3}],
    "no class": [{"bid": "a", "quantity": 1, "priority": "soon"}],
    "no price": [{"bid": "a", "quantity": 1, "priority": "urgent"}],
    "twice": 2 * [{"bid": "a", "quantity": 1, "limit": 1}],
    "nobody wins": [],
}


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.usefixtures("marked")
def test_the_faults_of_a_book_are_in_the_catalogs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.json").write_text(json.dumps({"supply": 8, "bids": BOOKS[name]}))
    fields = "pool quantity limit running many soon urgent normal background"

    assert not left_over(said(capsys, "market", "clear", str(tmp_path / "book.json")), fields)


@pytest.mark.usefixtures("marked")
def test_accounts_are_in_the_catalogs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    from brimful.fleet.events import PoolPriced
    from tests.market.test_invoice import random_log, written

    log = written(tmp_path / "log.jsonl", random_log(3))
    own = (Path(log).read_text(), "budget operator overrun rounding")
    for words in (
        ["market", "ledger", log],
        *(["invoice", "--log", log, "--by", by] for by in ("team", "job")),
    ):
        assert not left_over(said(capsys, *words), *own)
    priced = PoolPriced(
        at_s=60, site="here", gpu="h100", tier="spot", microusd_per_gpu_hour=2_000_000,
        cleared_microusd_per_gpu_hour=2_000_000, held=8, wanted=12, gpus=8,
    )  # fmt: skip
    log = written(tmp_path / "prices.jsonl", [priced, replace(priced, at_s=600)])
    assert not left_over(said(capsys, "market", "price", "--log", log), "h100 here spot")


# -- the machinery itself ----------------------------------------------------------------------------------


def test_an_error_is_told_in_the_language_asked_for_even_where_the_command_line_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", "--lang=de", "--gpu"]) == 2
    assert capsys.readouterr().err.startswith("Fehler: ")
    assert main(["fit", "absent.py", "--gpu", "4070", "--lang", "es", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["reason"]["code"], error["reason"]["path"]) == ("configs.no_file", "absent.py")


ANSWERS: dict[str, list[str]] = {
    "fit": ["fit", NANOGPT, *PAPER],
    "measured": ["fit", NANOGPT, "--gpu", "4070", "--measured-mfu", "0.9"],
    "explain": ["explain", str(ROOT / "examples" / "train.log"), "--config", NANOGPT, *PAPER],
    "sweep": ["sweep", NANOGPT, "--gpu", "4070", "--batch-size", "1:3"],
    "run": ["run", "--gpu", "rtx-4070", "--dry-run", "--", "python", NANOGPT],
    "simulate": ["simulate", str(ROOT / "examples" / "small.csv"), "--fleet", "1x1:v100", "--policy", "fifo"],
    "no file": ["fit", "absent.py", "--gpu", "4070"],
    "no option": ["fit", NANOGPT, "--gpu", "4070", "--sparkle"],
    "no command": ["sparkle"],
}


def json_in(language: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Of a job's command nothing is ours: the options stand before it."""
    main([words[0], "--json", "--lang", language, *words[1:]])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def leaves(found: object, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    if isinstance(found, (dict, list)):
        for name, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(value, (*path, name))
    else:
        yield path, found


def is_code(path: tuple[object, ...]) -> bool:
    return any(str(name) == "reason" or str(name).endswith(("code", "codes")) for name in path)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_words_of_json_follow_the_language_and_nothing_else_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    english, german = (dict(leaves(json_in(code, ANSWERS[name], capsys))) for code in ("en", "de"))
    assert english.keys() == german.keys(), "keys are the same in every language"
    sentences = set()
    for path, value in english.items():
        if path[-1] in ("cpu_s", "fleet", "quote"):  # how long it took; numbers and a name; the user's words
            continue
        if is_code(path) or not isinstance(value, str):
            assert german[path] == value, path
        elif value.count(" ") > 2:
            sentences.add(path)
            assert german[path] != value, path
    assert sentences


def test_a_python_program_reads_english_whatever_the_locale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = a_training()
    english = brimful.fit("gpt2", one, "rtx-4070").as_dict()
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert brimful.fit("gpt2", one, "rtx-4070").as_dict() == english
    main(["fit", "--model", "gpt2", "--gpu", "rtx-4070", "--json"])
    said = json.loads(capsys.readouterr().out)["data"]["memory"]
    assert said["peak_at_code"] == english["memory"]["peak_at_code"]
    assert said["peak_at"] != english["memory"]["peak_at"]
