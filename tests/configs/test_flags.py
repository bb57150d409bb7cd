import re
from pathlib import Path

import pytest

from brimful.configs.flags import read_flags
from brimful.configs.read import read
from brimful.configs.reading import own_lines
from brimful.configs.words import CHOICES, choose
from brimful.errors import BadInput
from brimful.fit.fit import fit
from brimful.language import Quoted, say
from tests.builders import refuses


def test_a_name_and_a_few_words_are_a_training() -> None:
    reading = read(
        None, model="llama-3.1-8b", overrides=["batch_size=4", "seq_len=4096", "optimizer=adam8bit"]
    )

    assert reading.model.layers == 32
    assert (reading.training.batch_size, reading.training.sequence_tokens) == (4, 4096)
    assert reading.training.optimizer == "adam8bit"
    assumed = {a.name for a in reading.assumed}
    assert "precision" in assumed
    assert not {"batch_size", "seq_len", "optimizer"} & assumed


@pytest.mark.parametrize(
    ("words", "dtype", "casts"),
    [
        ("amp-bf16", "bfloat16", "autocast"),
        ("amp_fp16", "float16", "autocast"),
        ("bf16-mixed", "bfloat16", "autocast"),
        ("bf16", "bfloat16", "none"),
        ("bf16-true", "bfloat16", "none"),
        ("fp32", "float32", "autocast"),
        ("tf32", "float32", "autocast"),
    ],
)
def test_a_precision_is_known_by_what_people_call_it(words: str, dtype: str, casts: str) -> None:
    training = read(None, model="gpt2", overrides=[f"precision={words}"]).training

    assert (training.dtype, training.casts) == (dtype, casts)


def test_tf32_and_fp32_differ_in_speed_only() -> None:
    assert read(None, model="gpt2", overrides=["precision=tf32"]).training.tf32
    assert not read(None, model="gpt2", overrides=["precision=fp32"]).training.tf32


def test_lora_freezes_16_bit_weights_and_qlora_4_bit_ones() -> None:
    lora = read(None, model="gpt2", overrides=["lora=True", "rank=16"]).training
    qlora = read(None, model="gpt2", overrides=["qlora=True"]).training

    assert (lora.tuning, lora.casts, lora.rank, lora.frozen_bits) == ("lora", "none", 16, 0)
    assert (qlora.tuning, qlora.frozen_bits, qlora.targets) == ("lora", 4, 7)


def test_what_is_said_of_an_adapter_overrules_its_defaults_in_any_order() -> None:
    for words in (["rank=64", "qlora=True"], ["qlora=True", "rank=64"]):
        reading = read(None, model="gpt2", overrides=words)
        assert reading.training.rank == 64
        assert "rank" not in {a.name for a in reading.assumed}


def test_what_an_adapter_brings_along_is_listed() -> None:
    assumed = {a.name: a.value for a in read(None, model="gpt2", overrides=["qlora=True"]).assumed}

    assert (assumed["rank"], assumed["targets"]) == (16, 7)


def test_several_gpus_copy_the_model_unless_told_to_shard_it() -> None:
    copied = read(None, model="gpt2", overrides=["gpus=8"]).training
    sharded = read(None, model="gpt2", overrides=["gpus=8", "sharding=zero3"]).training

    assert (copied.sharding, copied.shards) == ("ddp", 1)
    assert (sharded.sharding, sharded.shards) == ("zero3", 8)
    assert copied.effective_batch == 8


@pytest.mark.parametrize(
    ("words", "part", "wanted", "enough"),
    [
        (["tensor=8"], "tensor=8", {"code": "configs.multiple_of", "split": 8}, 8),
        (["pipeline=2"], "pipeline=2", {"code": "configs.multiple_of", "split": 2}, 2),
        (["context=4", "gpus=2"], "context=4", {"code": "configs.multiple_of", "split": 4}, 4),
        (["pipeline=3", "gpus=8"], "pipeline=3", {"code": "configs.multiple_of", "split": 3}, 9),
        (["sharding=zero3", "shards=8"], "shards=8", {"code": "configs.at_least", "low": 8}, 8),
        (
            ["sharding=zero3", "shards=8", "tensor=2", "gpus=8"],
            "shards=8",
            {"code": "configs.at_least", "low": 16},
            16,
        ),
    ],
)
def test_a_split_over_gpus_that_are_not_there_is_refused_with_how_many_it_takes(
    words: list[str], part: str, wanted: dict[str, object], enough: int
) -> None:
    with refuses(BadInput, "configs.split_takes_gpus", part, wanted, enough) as refused:
        read(None, model="llama-3.1-8b", overrides=words)
    assert f"gpus={enough}," in refused.value.hint

    others = [word for word in words if not word.startswith("gpus")]
    read(None, model="llama-3.1-8b", overrides=[*others, f"gpus={enough}"])


@pytest.mark.parametrize("targets", [0, 9, 100])
def test_lora_adapts_up_to_seven_matrices_of_a_layer_and_the_head(targets: int) -> None:
    with refuses(BadInput, "configs.out_of_range"):
        read(None, model="gpt2", overrides=["lora=True", f"targets={targets}"])


def test_an_update_within_the_backward_pass_has_nothing_to_accumulate() -> None:
    with refuses(BadInput, "configs.in_backward_accumulates") as refused:
        read(None, model="gpt2", overrides=["in_backward=True", "gradient_accumulation_steps=4"])
    assert "gradient_accumulation_steps=1" in refused.value.hint

    words = ["in_backward=True", "gradient_accumulation_steps=1"]
    assert read(None, model="gpt2", overrides=words).training.in_backward


def test_a_choice_nobody_taught_us_is_named_and_counts_as_unsure() -> None:
    reading = read(None, model="gpt2", overrides=["optimizer=sophia", "attention=telepathic"])

    assert reading.unsure == 2
    assert reading.warnings == (
        say("configs.word_unknown", key="optimizer", word=Quoted("sophia"), taken="adamw"),
        say("configs.word_unknown", key="attention", word=Quoted("telepathic"), taken="efficient"),
    )


def test_each_of_our_own_words_means_itself() -> None:
    for asked, words in CHOICES.items():
        for word in words:
            assert choose(asked, word).word == word
            assert choose(asked, word.upper().replace("-", "_")).known


@pytest.mark.parametrize(
    "words",
    [
        "batch_size=0",
        "batch_size=-3",
        "batch_size=10**30",
        "batch_size=1e400",
        "batch_size=4.5",
        "batch_size=True",
        "batch_size=__import__('os')",
        "seq_len=9**9**9",
        "compile=perhaps",
        "dropout=nan",
        "dropout=1.5",
        "heads=7",
        "kv_heads=5",
        "sparkle=1",
        "seq_len=4096",
        "=",
        "batch_size",
    ],
)
def test_a_setting_out_of_range_is_one_clear_error(words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(None, model="gpt2", overrides=[words])

    assert refused.value.hint
    assert len(refused.value.problem) < 200


def test_nothing_at_all_and_too_much_are_told_apart() -> None:
    with refuses(BadInput, "configs.nothing_to_fit"):
        read(None)
    with refuses(BadInput, "configs.config_and_model"):
        read("config.py", model="gpt2")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["batch_size=3", "seq_len=512", "gradient_accumulation_steps=7", "compile=True", "precision=bf16"],
        ["precision=fp32", "optimizer=adam8bit", "attention=math", "checkpointing=selective"],
        ["precision=tf32", "optimizer=adamw-foreach", "loss_chunks=4", "fused_loss=True"],
        ["gpus=16", "sharding=zero3", "tensor=2", "offload_states=True"],
        ["lora=True", "rank=4", "targets=4"],
        ["qlora=True"],
    ],
)
def test_our_words_for_a_training_read_as_that_training(words: list[str]) -> None:
    reading = read(None, model="gpt2", overrides=words)
    again = [f"{key}={value}" for key, value in own_lines(reading.training).items()]

    assert read(None, model="gpt2", overrides=again).training == reading.training


def test_the_page_names_every_word_of_ours() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "read-a-config.md").read_text("utf-8")
    rows = {row.split("|")[1].strip(" `-"): row for row in page.splitlines() if row.startswith("| `--")}

    for asked, words in CHOICES.items():
        named = set(re.findall(r"[\w-]+", rows[asked]))
        assert {word for word in words if not word.startswith("adamw-")} <= named


def test_an_older_pytorch_is_neither_counted_nor_advised_what_it_lacks() -> None:
    reading = read_flags("gpt2", {"torch": "1.10"})

    training = reading.training
    assert (training.attention, training.optimizer_kernel, training.torch.release) == ("math", "loop", "1.10")
    assert not {"attention", "optimizer", "torch"} & {each.name for each in reading.assumed}
    assert say("configs.no_fused_attention", release="1.10") in reading.warnings
    answer = fit(reading.model, training, "t4")
    changes = [fix.change for fix in (*answer.fixes, *answer.faster)]
    assert not any({"compile", "attention", "optimizer"} & change.keys() for change in changes)


def test_a_word_of_the_users_wins_over_what_a_release_has_by_default() -> None:
    assert (
        read_flags("gpt2", {"torch": "1.12", "optimizer": "adamw-foreach"}).training.optimizer_kernel
        == "foreach"
    )


def test_the_release_is_told_from_python_too() -> None:
    today = read_flags("gpt2", {"batch_size": 8})
    then = fit(today.model, today.training, "t4", torch="1.12")

    assert then.memory.device_bytes.likely > fit(today.model, today.training, "t4").memory.device_bytes.likely
