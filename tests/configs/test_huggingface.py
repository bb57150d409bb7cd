import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.errors import BadInput, NotFound
from brimful.fit.count import parameters
from brimful.language import say
from brimful.specs.model import Experts, Images
from brimful.specs.presets import all_presets
from tests.builders import refuses

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}


def write(folder: Path, name: str, content: Any) -> str:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(file)


def model(folder: Path, **changes: Any) -> Reading:
    return read(write(folder, "config.json", {**LLAMA, **changes}))


# Each config.json as published, cut to what matters, and the model whose parameters it must have.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA,
    "gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_ctx": 1024,
        "vocab_size": 50257, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "n_inner": None,
    },
    "pythia-1b": {
        "model_type": "gpt_neox", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8,
        "intermediate_size": 8192, "vocab_size": 50304, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "use_parallel_residual": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True, "attention_bias": False,
    },
    "gemma-2b": {
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000,
        "max_position_embeddings": 8192,
    },
    "opt-1.3b": {
        "model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "ffn_dim": 8192, "vocab_size": 50272, "max_position_embeddings": 2048, "dropout": 0.1,
        "word_embed_proj_dim": 2048,
    },
    "mpt-7b": {
        "model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4,
        "vocab_size": 50432, "max_seq_len": 2048, "no_bias": True,
    },
    "falcon-7b": {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "multi_query": True, "parallel_attn": True, "bias": False, "vocab_size": 65024,
    },
    "phi-2": {
        "model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 10240, "vocab_size": 51200, "max_position_embeddings": 2048, "resid_pdrop": 0.1,
        "tie_word_embeddings": False,
    },
    "bert-large": {
        "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_parameters_of_the_published_model(tmp_path: Path, name: str) -> None:
    reading = read(write(tmp_path, "config.json", PUBLISHED[name]))
    published = {preset.model.name: preset.parameters for preset in all_presets()}

    assert parameters(reading.model) == published[name]
    assert reading.unsure == 0


def test_without_arguments_trainers_defaults_are_taken_and_listed(tmp_path: Path) -> None:
    reading = model(tmp_path)

    assert reading.training.batch_size == 8
    assert reading.training.dtype == "float32"
    assert not reading.training.tf32
    assumed = {a.name: a.value for a in reading.assumed}
    assert assumed["per_device_train_batch_size"] == 8
    assert assumed["optim"] == "adamw_torch_fused"


ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 16,
    "bf16": True,
    "gradient_checkpointing": True,
    "optim": "adamw_bnb_8bit",
    "torch_compile": True,
    "max_length": 4096,
    "learning_rate": 2e-5,
    "use_liger_kernel": True,
}
YAML = """
# fine-tuning, as alignment recipes write it
model_name_or_path: "meta-llama/Llama-3.1-8B"   # a published model
torch_dtype: bfloat16
per_device_train_batch_size: 4
gradient_accumulation_steps: 16
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
max_length: 4096
learning_rate: 2.0e-05
report_to:
- tensorboard
use_peft: yes
lora_r: 32
lora_target_modules:
  - q_proj
  - k_proj
  - v_proj
  - o_proj
"""


def test_training_arguments_say_how_it_is_trained(tmp_path: Path) -> None:
    config = write(tmp_path, "config.json", LLAMA)
    reading = read(config, arguments=write(tmp_path, "args.json", ARGUMENTS))
    training = reading.training

    assert (training.batch_size, training.accumulation, training.sequence_tokens) == (4, 16, 4096)
    assert (training.dtype, training.casts) == ("bfloat16", "autocast")
    assert (training.checkpointing, training.optimizer) == ("full", "adam8bit")
    assert training.compiled
    assert training.fused_loss


def test_yaml_that_names_a_published_model_is_all_it_takes(tmp_path: Path) -> None:
    reading = read(write(tmp_path, "recipe.yaml", YAML))

    assert reading.model.name == "llama-3.1-8b"
    assert (reading.training.dtype, reading.training.casts) == ("bfloat16", "none")
    assert (reading.training.tuning, reading.training.rank, reading.training.targets) == ("lora", 32, 4)
    assert reading.training.checkpointing == "full"


def test_interpolation_that_counts_asks_for_set(tmp_path: Path) -> None:
    text = "base_model: llama-3.2-1b\nmicro_batch_size: ${sizes.batch}\n"
    with pytest.raises(BadInput) as refused:
        read(write(tmp_path, "recipe.yaml", text))
    assert "--set per_device_train_batch_size=" in refused.value.hint


def test_the_example_is_the_recipe_it_says() -> None:
    reading = read(str(Path(__file__).resolve().parents[2] / "examples" / "huggingface" / "sft.yaml"))

    assert reading.model.name == "llama-3.2-1b"
    assert (reading.training.batch_size, reading.training.effective_batch) == (16, 32)
    assert (reading.warnings, reading.unsure) == ((), 0)


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    config = write(tmp_path, "config.json", LLAMA)
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in ARGUMENTS.items())

    assert (
        read(config, arguments=write(tmp_path, "args.json", ARGUMENTS)).training
        == read(config, arguments=write(tmp_path, "args.yml", lines)).training
    )


def test_a_word_nobody_taught_us_gets_a_named_fallback_and_counts_as_unsure(tmp_path: Path) -> None:
    config = write(tmp_path, "config.json", {**LLAMA, "model_type": "novel", "rms_norm_eps": 1e-5})
    reading = read(config, arguments=write(tmp_path, "args.json", {"optim": "sophia", "sparkle": 3}))

    assert reading.unsure == 2
    assert [said.as_dict() for said in reading.warnings] == [
        {
            "code": "configs.taken_for",
            "type": {"code": "configs.model_type_unknown", "kind": "novel"},
            "family": "llama",
        },
        {"code": "configs.word_unknown", "key": "optim", "word": "sophia", "taken": "adamw"},
        {"code": "configs.weights_taken_fp32", "dtype": "bfloat16"},
        {"code": "configs.not_known_without_effect", "names": "sparkle"},
    ]


def test_set_and_flags_overrule_both_files_in_either_language(tmp_path: Path) -> None:
    config = write(tmp_path, "config.json", LLAMA)
    arguments = write(tmp_path, "args.json", ARGUMENTS)
    words = [
        "per_device_train_batch_size=2",
        "checkpointing=selective",
        "layers=4",
        "gpus=8",
        "sharding=fsdp",
    ]
    reading = read(config, arguments=arguments, overrides=words)

    assert reading.training.batch_size == 2
    assert reading.training.checkpointing == "selective"
    assert reading.model.layers == 4
    assert (reading.training.sharding, reading.training.shards) == ("zero3", 8)


def test_weights_are_taken_as_fp32_unless_the_arguments_say_otherwise(tmp_path: Path) -> None:
    config = write(tmp_path, "config.json", LLAMA)
    silent = read(config, arguments=write(tmp_path, "args.json", {"bf16": True}))
    told = read(config, arguments=write(tmp_path, "args.json", {"bf16": True, "torch_dtype": "bfloat16"}))

    assert silent.training.weights_dtype == "float32"
    assert silent.warnings[0] == say("configs.weights_taken_fp32", dtype="bfloat16")
    assert told.training.weights_dtype == "bfloat16"
    assert told.warnings == ()


def test_what_trainer_has_no_line_for_is_a_change_of_code(tmp_path: Path) -> None:
    reading = read(None, model="gpt2", arguments=write(tmp_path, "args.json", {}))
    change, lines_alone = reading.dialect.spell(
        reading.training, replace(reading.training, checkpointing="selective")
    )

    assert change == {"checkpointing": ("none", "selective")}
    assert not lines_alone


def test_what_a_flag_says_is_no_longer_assumed_under_trainers_name(tmp_path: Path) -> None:
    words = [
        "batch_size=2",
        "precision=bf16",
        "optimizer=sgd",
        "compile=True",
        "checkpointing=full",
        "gpus=2",
    ]
    reading = read(write(tmp_path, "config.json", LLAMA), overrides=words)

    assert {a.name for a in reading.assumed} == {
        "gradient_accumulation_steps",
        "max_length",
        "attn_implementation",
        "use_liger_kernel",
    }


def test_sharding_on_one_gpu_is_said_to_have_no_effect(tmp_path: Path) -> None:
    reading = read(None, model="gpt2", arguments=write(tmp_path, "a.json", {"fsdp": "full_shard auto_wrap"}))

    assert reading.training.sharding == "none"
    assert reading.warnings[0] == say("configs.sharding_without_effect", sharding="zero3")


@pytest.mark.parametrize(("stage", "sharding"), [(1, "zero1"), (2, "zero2"), (3, "zero3"), ([], "zero2")])
def test_a_deepspeed_config_beside_the_arguments_is_read(tmp_path: Path, stage: Any, sharding: str) -> None:
    write(
        tmp_path, "ds.json", {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
    )
    arguments = write(tmp_path, "args.json", {"deepspeed": "configs/ds.json", "bf16": True})
    training = read(None, model="gpt2", arguments=arguments, overrides=["gpus=4"]).training

    assert training.sharding == sharding
    assert training.offload_states


def test_a_deepspeed_config_that_is_not_there_is_guessed_and_said_so(tmp_path: Path) -> None:
    arguments = write(tmp_path, "args.json", {"deepspeed": "../../etc/passwd"})
    reading = read(None, model="gpt2", arguments=arguments, overrides=["gpus=4"])

    assert reading.training.sharding == "zero2"
    assert reading.unsure == 1
    assert reading.warnings[0].code == "configs.no_zero_stage_in"


def test_only_the_text_part_of_a_model_for_images_is_counted_and_said_so(tmp_path: Path) -> None:
    reading = read(write(tmp_path, "config.json", {"model_type": "gemma3", "text_config": dict(LLAMA)}))

    assert reading.unsure == 1
    assert reading.warnings[0].code == "configs.only_text_config"


@pytest.mark.parametrize(
    ("said", "experts"),
    [
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            Experts(count=8, chosen=2, width=14336),
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4,
             "moe_intermediate_size": 96, "mlp_only_layers": [0]},
            Experts(count=16, chosen=4, width=96, dense_layers=1),
        ),
        (
            {"model_type": "qwen2_moe", "num_experts": 16, "num_experts_per_tok": 4,
             "moe_intermediate_size": 96, "shared_expert_intermediate_size": 384},
            Experts(count=16, chosen=4, width=96, shared_width=384, shared_gate=True),
        ),
        (
            {"model_type": "deepseek", "n_routed_experts": 64, "num_experts_per_tok": 6,
             "moe_intermediate_size": 64, "n_shared_experts": 2, "first_k_dense_replace": 1,
             "moe_layer_freq": 1},
            Experts(count=64, chosen=6, width=64, shared_width=128, dense_layers=1),
        ),
        ({"model_type": "mixtral", "num_local_experts": 1}, None),
    ],
)  # fmt: skip
def test_a_mixture_of_experts_is_read(tmp_path: Path, said: dict[str, Any], experts: Experts | None) -> None:
    assert model(tmp_path, **said).model.experts == experts


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"num_local_experts": 8}, "experts_per_token_missing 8"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "out_of_range_in num_experts_per_tok 9"),
        ({"num_experts": "8"}, "out_of_range_in num_experts '8'"),
        ({"n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 512}, "latent_attention_unknown"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 10**6},
            "out_of_range_in first_k_dense_replace 1000000",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tmp_path: Path, said: dict[str, Any], reason: str) -> None:
    code, *values = reason.split()
    with refuses(BadInput, f"configs.{code}", *values):
        model(tmp_path, model_type="mixtral", **said)


VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "image_size": 224, "patch_size": 16,
}  # fmt: skip


def test_a_vision_transformer_is_read_and_its_length_is_an_images_tokens(tmp_path: Path) -> None:
    labels = {"id2label": {str(n): "x" for n in range(1000)}, "architectures": ["ViTForImageClassification"]}
    reading = read(write(tmp_path, "config.json", VIT | labels))

    assert reading.model.images == Images(size=224, patch=16)
    assert reading.model.classes == 1000
    assert parameters(reading.model) == 86_567_656  # as torchvision publishes it
    assert reading.training.sequence_tokens == 197
    assert not reading.model.causal

    larger = read(write(tmp_path, "config.json", VIT | labels), overrides=["image_size=384"])
    assert larger.training.sequence_tokens == 577
    assert parameters(larger.model) == 86_567_656  # the table of positions is stretched, not made anew


def test_a_clip_config_is_read_for_its_images_alone_and_said_so(tmp_path: Path) -> None:
    found = {"model_type": "clip", "text_config": {}, "vision_config": {"patch_size": 32}}
    reading = read(write(tmp_path, "config.json", found))

    assert parameters(reading.model) == 87_456_000
    assert reading.warnings[0].code == "configs.only_vision_config"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"patch_size": 0}, "out_of_range_in patch_size 0"),
        ({"patch_size": 300}, "patch_larger_than_image 300 224"),
        ({"use_swiglu_ffn": True}, "giant_dinov2_unknown"),
        ({"num_attention_heads": None}, "does_not_say num_attention_heads"),
    ],
)
def test_a_vision_transformer_that_cannot_be_is_refused(
    tmp_path: Path, said: dict[str, Any], reason: str
) -> None:
    code, *values = reason.split()
    with refuses(BadInput, f"configs.{code}", *values):
        read(write(tmp_path, "config.json", VIT | said))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["seq_len=100"], "seq_len_of_images 197"),
        (["image_size=8"], "image_smaller_than_patch 8 16"),
        (["expert=2", "gpus=2"], "no_experts_to_spread 2"),
    ],
)
def test_a_word_that_means_nothing_for_images_is_refused(
    tmp_path: Path, words: list[str], reason: str
) -> None:
    code, *values = reason.split()
    with refuses(BadInput, f"configs.{code}", *values):
        read(write(tmp_path, "config.json", VIT), overrides=words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{",
        '{"hidden_size": NaN}',
        '{"hidden_size": Infinity}',
        '{"hidden_size": -1}',
        '{"hidden_size": 1e999}',
        '{"hidden_size": ' + "9" * 30 + "}",
        '{"hidden_size": 768, "hidden_size": 1024}',
        "{\"hidden_size\": \"__import__('os').system('touch PWNED')\"}",
        '{"hidden_size": true, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}',
        '{"hidden_size": 768.0, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}',
        '{"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 7, "vocab_size": 9}',
        '{"n_embd": 768, "n_layer": 2, "n_head": 12, "num_kv_heads": 5, "vocab_size": 9}',
        '{"hidden_size": 768}',
        '{"a": ' * 100_000,
        "[" * 100_000,
        '{"text_config": {"text_config": {}}}',
        '{"nothing": "of use"}',
    ],
)
def test_json_that_is_no_config_is_one_clear_error_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as refused:
        read(write(tmp_path, "config.json", text))

    assert refused.value.hint
    assert len(refused.value.problem) < 300
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "text",
    [
        "per_device_train_batch_size: -4",
        "per_device_train_batch_size: .inf",
        "per_device_train_batch_size: 1e30",
        "per_device_train_batch_size: " + "9" * 40,
        "per_device_train_batch_size: four",
        "per_device_train_batch_size: !!python/object/apply:os.system ['touch PWNED']",
        "per_device_train_batch_size: &a 3",
        "bf16: maybe",
        "bf16: true\nfp16: true",
        "bf16: true\nbf16: false",
        "just words",
        "  - indented: first",
        "\tbf16: true",
        "a: &a [1,2]\nb: &b [*a,*a]\nmax_length: *b",
    ],
)
def test_yaml_that_is_no_config_is_one_clear_error_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as refused:
        read(None, model="gpt2", arguments=write(tmp_path, "args.yaml", text))

    assert refused.value.hint
    assert len(refused.value.problem) < 300
    assert [file.name for file in tmp_path.iterdir()] == ["args.yaml"]


@pytest.mark.parametrize("name", ["config.json", "args.yaml"])
def test_a_gigabyte_is_refused_by_its_size_alone(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as sparse:
        sparse.truncate(1024**3)

    with refuses(BadInput, "configs.file_too_large"):
        read(str(tmp_path / name))


LONG: dict[str, Callable[[int], str]] = {
    "long.yaml": lambda n: "report_to:\n" + "- a\n" * (4 * n),
    "wide.yaml": lambda n: "report_to:\n" + "".join(f"  k{i}: 1\n" for i in range(n)),
    "twice.json": lambda n: "{" + ",".join(f'"k{i}": 1' for i in range(n)) + f', "k{n - 1}": 2}}',
    "deep.yaml": lambda n: "".join(" " * i + "a:\n" for i in range(n // 60)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_file_as_long_as_allowed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput):
        read(write(tmp_path, name, LONG[name](60_000)))


@pytest.mark.parametrize("name", LONG)
def test_a_file_twice_as_long_is_at_most_about_twice_the_work(tmp_path: Path, name: str) -> None:
    """Counted in lines of Python run, not in seconds: what tries every pair does four times as much."""

    def lines_run(text: str) -> int:
        file, run = write(tmp_path, name, text), 0

        def count(*_: Any) -> Any:
            nonlocal run
            run += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            with contextlib.suppress(BadInput):
                read(file)
        finally:
            sys.settrace(before)
        return run

    lines_run(LONG[name](600))  # what is imported or made once
    assert lines_run(LONG[name](1200)) < 3 * lines_run(LONG[name](600))


def test_the_folder_of_a_checkpoint_will_do(tmp_path: Path) -> None:
    write(tmp_path, "config.json", LLAMA)

    assert read(str(tmp_path)).model.layers == 32


def test_a_model_nobody_knows_asks_for_its_config(tmp_path: Path) -> None:
    with refuses(NotFound, "specs.name_unknown") as refused:
        read(write(tmp_path, "recipe.yaml", "model_name_or_path: me/my-own-model"))

    assert "config.json" in refused.value.hint


def test_shards_that_the_user_named_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text(json.dumps({"fsdp": "full_shard", "bf16": True}))

    reading = read(None, model="gpt2", arguments=str(file), overrides=["gpus=8", "shards=4"])

    assert (reading.training.gpus, reading.training.sharding, reading.training.shards) == (8, "zero3", 4)
