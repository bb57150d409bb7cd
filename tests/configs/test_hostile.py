"""Any file at all gives a reading or one clear refusal, whatever is in it; and never runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful.configs.arguments import KNOWN
from brimful.configs.huggingface import _FRACS, _SIZES
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.configs.settings import WORDS
from brimful.errors import BadInput
from brimful.fit.fit import fit_reading
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import FAMILIES
from tests.builders import refuses

CARD = find_gpu("rtx-4090")
FEW = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

numbers = st.one_of(
    st.integers(-5, 5),
    st.integers(1, 4096),
    st.integers(),
    st.floats(),
    st.sampled_from([10**18, 10**30, 0.1]),
)
plain = st.one_of(numbers, st.booleans(), st.none(), st.text(max_size=20))
values = st.one_of(
    plain, st.lists(plain, max_size=3), st.dictionaries(st.text(max_size=5), plain, max_size=3)
)
size_words = st.sampled_from([word for words, _, _ in _SIZES.values() for word in words])
frac_words = st.sampled_from([word for words in _FRACS.values() for word in words])
other_words = st.sampled_from(["model_type", "text_config", "attn_config", "multi_query", "hidden_act"])
families = st.sampled_from([*FAMILIES, "novel", "", 3])
SOUND = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


def answered(words: Callable[[], Reading]) -> None:
    """Reads; a refusal is short and says what to do, and what can be read is predicted too."""
    try:
        reading = words()
    except BadInput as refusal:
        refused: BadInput | None = refusal
    else:
        refused = None
        fit_reading(reading, CARD, correction=None)
    assert refused is None or (refused.hint and len(refused.problem) < 500)


def file_answered(name: str, text: str, model: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        if model is None:
            answered(lambda: read(str(file)))
        else:
            answered(lambda: read(None, model=model, arguments=str(file)))


@FEW
@given(
    st.dictionaries(st.one_of(size_words, frac_words, other_words), values, max_size=6),
    families,
    st.booleans(),
)
def test_any_json_is_a_model_or_a_refusal(found: dict[str, Any], family: Any, whole: bool) -> None:
    file_answered("config.json", json.dumps({"model_type": family, **(SOUND if whole else {}), **found}))


@FEW
@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), values, max_size=5))
def test_any_arguments_are_a_training_or_a_refusal(found: dict[str, Any]) -> None:
    file_answered("args.json", json.dumps(found), model="gpt2")


@FEW
@given(
    st.lists(
        st.tuples(st.sampled_from([*sorted(KNOWN), "- x", "  y", "&a", "? b"]), st.text(max_size=12)),
        max_size=6,
    )
)
def test_any_yaml_is_a_training_or_a_refusal(lines: list[tuple[str, str]]) -> None:
    file_answered("args.yaml", "\n".join(f"{key}: {value}" for key, value in lines), model="gpt2")


RECIPES: dict[str, dict[str, Any]] = {
    "litgpt": {"checkpoint_dir": "x/pythia-1b", "train": {"micro_batch_size": 1}},
    "torchtune": {"model": {"_component_": "torchtune.models.llama3_2.lora_llama3_2_1b"}},
    "torchtitan": {"model": {"name": "llama3", "flavor": "8B"}, "training": {}},
    "accelerate": {"distributed_type": "FSDP"},
    "axolotl": {"base_model": "gpt2"},
}
blocks = st.sampled_from(
    ["", "train", "training", "model", "tokenizer", "parallelism", "fsdp_config", "later"]
)
recipe_words = st.sampled_from([
    "devices", "num_nodes", "precision", "lora_r", "quantize", "optimizer", "micro_batch_size", "dtype",
    "global_batch_size", "max_seq_length", "batch_size", "compile", "max_seq_len", "lora_rank", "seq_len",
    "lora_attn_modules", "local_batch_size", "tensor_parallel_degree", "pipeline_parallel_degree",
    "data_parallel_shard_degree", "expert_parallel_degree", "num_processes", "mixed_precision", "converters",
    "fsdp_sharding_strategy", "loss", "model_config", "gradient_accumulation_steps", "fsdp", "sequence_len",
])  # fmt: skip


@FEW
@given(st.sampled_from(sorted(RECIPES)), st.lists(st.tuples(blocks, recipe_words, values), max_size=6))
def test_any_recipe_is_a_training_or_a_refusal(kind: str, said: list[tuple[str, str, Any]]) -> None:
    recipe = json.loads(json.dumps(RECIPES[kind]))
    for block, word, value in said:
        (recipe.setdefault(block, {}) if block else recipe)[word] = value
    model = "gpt2" if kind == "accelerate" else None
    file_answered("recipe.yaml", yaml.safe_dump(recipe), model=model)
    file_answered("recipe.yaml", json.dumps(recipe), model=model)


@FEW
@given(st.text(max_size=200))
def test_any_text_is_refused_or_read(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    file_answered("config.py", clean)
    file_answered("config.json", clean)
    file_answered("config.yaml", clean)


@FEW
@given(st.lists(st.tuples(st.sampled_from(sorted(WORDS)), plain), max_size=4))
def test_any_setting_is_taken_or_refused(said: list[tuple[str, Any]]) -> None:
    words = [f"{key}={value}" for key, value in said]
    answered(lambda: read(None, model="gpt2", overrides=words))


def test_the_line_of_an_error_is_a_number_to_go_to(tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    file.write_text("\n" * 1233 + "batch_size = = 8\n")
    with refuses(BadInput, "configs.line_not_python", 1234) as caught:
        read(str(file))
    assert "1234" in caught.value.problem, "without a thousands separator"
