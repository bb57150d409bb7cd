"""Recipes of other frameworks, read into the same training as flags would say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.configs.read import read
from brimful.errors import BadInput
from brimful.fit.count import parameters
from brimful.fit.fit import fit_reading
from brimful.fit.states import weights_bytes
from brimful.language import Sentence, say
from brimful.specs.gpu import find_gpu
from brimful.specs.training import Training
from brimful.units import GIB
from tests.builders import refuses

LITGPT = """
# fine-tuning with LoRA
checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
out_dir: out/lora
precision: bf16-true
quantize:
devices: 1
lora_r: 32
lora_alpha: 16
lora_query: true
lora_key: false
lora_value: true
lora_projection: false
lora_mlp: false

data:
  class_path: litgpt.data.Alpaca
  init_args:
    seed: 42

train:
  save_interval: 200
  global_batch_size: 8
  micro_batch_size: 2
  max_seq_length: 512
  learning_rate: 0.0002
"""
TORCHTUNE = """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
checkpointer:
  checkpoint_files: [
    model-00001-of-00004.safetensors,
    model-00002-of-00004.safetensors
  ]
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
gradient_accumulation_steps: 16
compile: False
dtype: bf16
enable_activation_checkpointing: True
"""
TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"

[training]
local_batch_size = 1
seq_len = 8192

[compile]
enable = true

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 8
tensor_parallel_degree = 2

[activation_checkpoint]
mode = "full"
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: false
"""
# After axolotl's examples/llama-3/qlora.yml and LLaMA-Factory's examples/train_lora/, shortened.
AXOLOTL = """
base_model: meta-llama/Meta-Llama-3-8B
load_in_4bit: true
datasets:
  - path: aaditya/alpaca_subset_1
    type: alpaca
adapter: qlora
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: paged_adamw_32bit
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
"""
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
template: llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
optim: adafactor
"""


def a_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_litgpt(tmp_path: Path) -> None:
    found = read(a_file(tmp_path, "lora.yaml", LITGPT))
    t = found.training

    assert parameters(found.model) == 6_738_415_616
    assert (t.batch_size, t.accumulation, t.sequence_tokens) == (2, 4, 512)
    assert (t.tuning, t.rank, t.targets, t.casts, t.dtype) == ("lora", 32, 2, "none", "bfloat16")
    assert t.framework.name == "litgpt"
    quantized = LITGPT.replace("quantize:", "quantize: bnb.nf4")
    assert read(a_file(tmp_path, "qlora.yaml", quantized)).training.frozen_bits == 4


def test_torchtune(tmp_path: Path) -> None:
    found = read(a_file(tmp_path, "8B_lora.yaml", TORCHTUNE))
    t = found.training

    assert parameters(found.model) == 8_030_261_248
    assert (t.batch_size, t.accumulation, t.sequence_tokens) == (2, 16, 4096)
    assert (t.tuning, t.rank, t.targets) == ("lora", 16, 6)
    assert (t.checkpointing, t.compiled, t.loss_chunks, t.optimizer_kernel) == ("full", False, 8, "fused")
    assert t.framework.name == "torchtune"


@pytest.mark.parametrize(
    ("component", "name"),
    [
        ("torchtune.models.llama2.llama2_7b", "llama-2-7b"),
        ("torchtune.models.llama3_2.qlora_llama3_2_3b", "llama-3.2-3b"),
        ("torchtune.models.qwen2_5.lora_qwen2_5_7b", "qwen2.5-7b"),
        ("torchtune.models.mistral.mistral_7b", "mistral-7b"),
    ],
)
def test_torchtunes_components_are_models(component: str, name: str, tmp_path: Path) -> None:
    text = TORCHTUNE.replace("torchtune.models.llama3_1.lora_llama3_1_8b", component)

    assert read(a_file(tmp_path, "x.yaml", text)).model.name.startswith(name)


def test_torchtitan(tmp_path: Path) -> None:
    found = read(a_file(tmp_path, "llama3_8b.toml", TORCHTITAN))
    t = found.training

    assert parameters(found.model) == 8_030_261_248
    assert (t.batch_size, t.sequence_tokens, t.compiled, t.checkpointing) == (1, 8192, True, "full")
    assert (t.gpus, t.tensor, t.sharding, t.shards, t.casts) == (16, 2, "zero3", 8, "gather")
    alone = TORCHTITAN.replace("shard_degree = 8", "shard_degree = -1").replace(
        "tensor_parallel_degree = 2", ""
    )
    path = a_file(tmp_path, "open.toml", alone)
    assert read(path).training.gpus == 1
    assert read(path, overrides=["gpus=8"]).training.sharding == "zero3"
    assert read(path, overrides=["gpus=8", "sharding=zero3"]).training.shards == 8


def test_deepspeed_and_accelerate_say_how_and_the_model_is_named_beside(tmp_path: Path) -> None:
    file = a_file(tmp_path, "ds.json", json.dumps(DEEPSPEED))
    t = read(None, model="llama-3.1-8b", arguments=file, overrides=["gpus=4"]).training
    assert (t.batch_size, t.sharding, t.shards, t.dtype) == (4, "zero2", 4, "bfloat16")

    file = a_file(tmp_path, "accelerate.yaml", ACCELERATE)
    found = read(None, model="llama-3.1-8b", arguments=file)
    t = found.training
    assert (t.gpus, t.sharding, t.shards, t.dtype) == (8, "zero3", 8, "bfloat16")
    assert found.file is None  # no line of it could be patched by TrainingArguments' words


def test_overrides_have_the_last_word(tmp_path: Path) -> None:
    path = a_file(tmp_path, "lora.yaml", LITGPT)

    assert read(path, overrides=["batch_size=1", "rank=4"]).training.rank == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", "a = 1"),
        ("x.toml", "= ="),
        ("x.toml", "[model]\nflavor = 3\n[training]\n"),
        ("x.yaml", LITGPT.replace("Llama-2-7b-hf", "no-such-model")),
        ("x.yaml", TORCHTUNE.replace("lora_llama3_1_8b", "mystery_9b")),
        ("x.yaml", LITGPT.replace("lora_r: 32", "lora_r: -1e400")),
        ("x.yaml", LITGPT.replace("micro_batch_size: 2", "micro_batch_size: '2'")),
        ("x.yaml", LITGPT.replace("micro_batch_size: 2", "micro_batch_size: 02")),
        ("x.yaml", LITGPT.replace("micro_batch_size: 2", "micro_batch_size: [2]")),
        ("x.yaml", TORCHTUNE.replace("batch_size: 2", "batch_size: ${sizes.batch}")),
        ("x.toml", TORCHTITAN.replace("seq_len = 8192", "seq_len = 12:30:00")),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read(a_file(tmp_path, name, text))
    assert refused.value.hint


def test_a_word_nobody_knows_gets_its_fallback_and_is_told(tmp_path: Path) -> None:
    text = LITGPT.replace("bf16-true", "int3-maybe")

    [said] = read(a_file(tmp_path, "x.yaml", text)).warnings
    assert (said.code, said.values["key"]) == ("configs.word_unknown", "precision")


def test_axolotl(tmp_path: Path) -> None:
    reading = read(a_file(tmp_path, "qlora.yml", AXOLOTL))
    training = reading.training

    assert (training.batch_size, training.accumulation, training.sequence_tokens) == (2, 4, 4096)
    assert (training.tuning, training.rank, training.targets, training.frozen_bits) == ("lora", 32, 7, 4)
    assert (training.dtype, training.checkpointing, training.attention) == ("bfloat16", "full", "flash")
    assert training.optimizer == "adamw"


def test_llama_factory_and_what_it_leaves_unsaid(tmp_path: Path) -> None:
    training = read(a_file(tmp_path, "lora.yaml", LLAMA_FACTORY)).training

    assert (training.batch_size, training.accumulation, training.sequence_tokens) == (1, 8, 2048)
    assert (training.tuning, training.rank, training.targets) == ("lora", 8, 7)
    assert (training.checkpointing, training.optimizer) == ("full", "adafactor")

    said = "lora_target: q_proj,k_proj,v_proj\ndisable_gradient_checkpointing: true\nflash_attn: disabled\n"
    text = LLAMA_FACTORY.replace("lora_target: all\n", said)
    training = read(a_file(tmp_path, "other.yaml", text)).training
    assert (training.targets, training.checkpointing, training.attention) == (3, "none", "math")


@pytest.mark.parametrize(("name", "text"), [("axolotl", AXOLOTL), ("llama-factory", LLAMA_FACTORY)])
def test_frozen_weights_are_loaded_in_the_format_they_are_multiplied_in(
    name: str, text: str, tmp_path: Path
) -> None:
    text = text.replace("load_in_4bit: true\n", "").replace("adapter: qlora", "adapter: lora")
    found = read(a_file(tmp_path, f"{name}.yaml", text))
    t = found.training

    # axolotl's normalize_config and LLaMA-Factory's patch_config: torch_dtype is bf16 where bf16 is on
    assert (t.weights_dtype, t.frozen_bits, t.adapter_dtype) == ("bfloat16", 0, "float32")
    assert weights_bytes(found.model, t) == 2 * parameters(found.model)


PRETRAIN = (
    "model_name: Llama-3.2-1B\nprecision: bf16-true\ntrain:\n  global_batch_size: 8\n  max_seq_length: 64\n"
)


def test_a_litgpt_recipe_may_leave_its_micro_batch_to_the_script(tmp_path: Path) -> None:
    """`litgpt pretrain` takes 4 of 512 sequences at a time, `litgpt finetune` 1 of 16 (their `setup`)."""
    pretrain = read(a_file(tmp_path, "a.yaml", PRETRAIN))
    null = read(a_file(tmp_path, "b.yaml", PRETRAIN + "  micro_batch_size:\n"))
    finetune = read(
        a_file(
            tmp_path, "c.yaml", PRETRAIN.replace("model_name: ", "checkpoint_dir: checkpoints/meta-llama/")
        )
    )
    bare = read(a_file(tmp_path, "d.yaml", PRETRAIN.replace("global_batch_size: 8", "epochs: 1")))
    said = read(a_file(tmp_path, "e.yaml", PRETRAIN + "  micro_batch_size: 4\n"))
    got = [(one.training.batch_size, one.training.accumulation) for one in (pretrain, null, finetune, bare)]

    assert got == [(4, 2), (4, 2), (1, 8), (4, 128)]
    assert pretrain.training == null.training == said.training
    assert (pretrain.training.framework.name, pretrain.training.sequence_tokens) == ("litgpt", 64)
    assert ("batch_size", 4) in {(each.name, each.value) for each in pretrain.assumed}
    assert ("gradient_accumulation_steps", 128) in {(each.name, each.value) for each in bare.assumed}
    assert "batch_size" not in {each.name for each in said.assumed}
    overruled = read(a_file(tmp_path, "a.yaml", PRETRAIN), overrides=["batch_size=8"])
    assert (overruled.training.batch_size, "batch_size" in {each.name for each in overruled.assumed}) == (
        8,
        False,
    )


@pytest.mark.parametrize("train", ["", "[1]", "4", "'fast'"])
def test_litgpts_train_is_a_mapping(tmp_path: Path, train: str) -> None:
    path = a_file(tmp_path, "x.yaml", f"model_name: Llama-3.2-1B\ntrain: {train}\n")
    with refuses(BadInput, "configs.in_file", "x.yaml: train"):
        read(path)


@pytest.mark.parametrize(
    ("recipe", "said", "ours"),
    [
        (LITGPT, "train.micro_batch_size=8", {"batch_size": 8, "accumulation": 1}),
        (LITGPT, "micro_batch_size=4", {"batch_size": 4, "accumulation": 2}),
        (LITGPT, "train.micro_batch_size=None", {"batch_size": 1, "accumulation": 8}),
        (LITGPT, "train.max_seq_length=128", {"sequence_tokens": 128, "loss_chunks": 1}),
        (LITGPT, "lora_mlp=true", {"targets": 5}),
        (TORCHTUNE, "tokenizer.max_seq_len=1024", {"sequence_tokens": 1024}),
        (TORCHTUNE, "max_seq_len=1024", {"sequence_tokens": 1024}),
        (TORCHTUNE, "model.lora_rank=4", {"rank": 4}),
    ],
)
def test_set_takes_the_paths_of_the_recipe(
    tmp_path: Path, recipe: str, said: str, ours: dict[str, object]
) -> None:
    path = a_file(tmp_path, "x.yaml", recipe)
    was, found = read(path).training, read(path, overrides=[said]).training

    assert {name: getattr(found, name) for name in ours} == ours
    assert replace(found, **{name: getattr(was, name) for name in ours}) == was


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (TORCHTUNE, "_component_=x"),  # of the model, the optimizer and the loss
        (TORCHTUNE, "train.micro_batch_size=4"),
        (TORCHTUNE, "checkpoint_dir=x"),  # LitGPT's
        (LITGPT, "train.no_such_line=4"),
    ],
)
def test_set_refuses_what_the_recipe_does_not_read(tmp_path: Path, recipe: str, said: str) -> None:
    with refuses(BadInput, "configs.set_unknown"):
        read(a_file(tmp_path, "x.yaml", recipe), overrides=[said])


def test_a_sharded_or_fully_trained_model_stays_in_fp32(tmp_path: Path) -> None:
    full = read(a_file(tmp_path, "full.yaml", LLAMA_FACTORY.replace("type: lora", "type: full")))
    sharded = read(
        a_file(tmp_path, "zero.yml", AXOLOTL.replace("adapter: qlora", "deepspeed: zero2.json")),
        overrides=["gpus=2", "sharding=zero2"],
    )

    assert full.training.weights_dtype == "float32"  # upcast, as all of it is trained
    assert sharded.training.weights_dtype == "float32"  # DeepSpeed keeps an fp32 master


def test_litgpts_optimizer(tmp_path: Path) -> None:
    plain = "optimizer:\n  class_path: bitsandbytes.optim.PagedAdamW8bit\n  init_args:\n    lr: 0.001\n"

    assert read(a_file(tmp_path, "a.yaml", LITGPT + plain)).training.optimizer == "adam8bit"
    assert read(a_file(tmp_path, "b.yaml", LITGPT + "optimizer: SGD\n")).training.optimizer == "sgd"
    assert read(a_file(tmp_path, "c.yaml", LITGPT)).training.optimizer == "adamw"


def test_torchtitans_experts_and_micro_batches(tmp_path: Path) -> None:
    text = TORCHTITAN.replace('"llama3"', '"qwen3"').replace('"8B"', '"30B-A3B"')
    text = text.replace("local_batch_size = 1", "local_batch_size = 8")
    text = text.replace(
        "[activation", "expert_parallel_degree = 8\npipeline_parallel_degree = 2\n[activation"
    )
    t = read(a_file(tmp_path, "moe.toml", text)).training

    # its 8 are 4 times the 2 tensor-parallel ones: a GPU holds an eighth of the experts
    assert (t.expert, t.tensor, t.pipeline, t.gpus) == (4, 2, 2, 32)
    # pipeline_parallel_microbatch_size is 1 where nobody says (torchtitan's job config)
    assert (t.batch_size, t.accumulation) == (1, 8)


def test_accelerates_fp8_offloading_and_checkpointing(tmp_path: Path) -> None:
    def of(text: str) -> Training:
        return read(None, model="llama-3.1-8b", arguments=a_file(tmp_path, "a.yaml", text)).training

    fp8 = of(ACCELERATE.replace("bf16", "fp8"))
    assert (fp8.fp8, fp8.dtype, fp8.sharding) == (True, "bfloat16", "zero3")
    away = of(ACCELERATE.replace("offload_params: false", "offload_params: true"))
    assert away.offload_states
    again = of(ACCELERATE + "  fsdp_activation_checkpointing: true\n")
    assert again.checkpointing == "full"
    kept = of(ACCELERATE.replace("sharding_strategy: FULL_SHARD", "reshard_after_forward: false"))
    assert kept.sharding == "zero2"
    zero = of(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\n"
        "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n  offload_param_device: none\n"
    )
    assert (zero.sharding, zero.offload_states) == ("zero2", True)


# -- depth: a setting counts where its framework reads it, and nowhere else ----------------------------------

TINYLLAMA = """
checkpoint_dir: checkpoints/TinyLlama/TinyLlama-1.1B
precision: bf16-true
train:
  global_batch_size: 8
  micro_batch_size: 4
  max_seq_length: 512
"""


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ("", ()),
        ("  notes: |\n    try this next:\n    micro_batch_size: 64\n", ()),
        ("  notes: >\n    micro_batch_size: 64\n", ()),
        ('  notes: "then\n    micro_batch_size: 64"\n', ()),
        ("  # micro_batch_size: 64\n", ()),
        ("  stage_two:\n    micro_batch_size: 64\n", ("train.stage_two.micro_batch_size",)),
        ("stage_two:\n  train:\n    micro_batch_size: 64\n", ("stage_two.train.micro_batch_size",)),
        ("stages:\n- micro_batch_size: 64\n", ("stages.0.micro_batch_size",)),
        ("micro_batch_size: 64\n", ("micro_batch_size",)),
    ],
)
def test_a_litgpt_recipe_needs_what_its_train_block_says(
    tmp_path: Path, more: str, warned: tuple[str, ...]
) -> None:
    reading = read(a_file(tmp_path, "full.yaml", TINYLLAMA + more))
    memory = fit_reading(reading, find_gpu("rtx-4090"), correction=None).memory

    # The depth of YAML was once flattened: 64 was taken, and 85.8 GiB.
    assert round(memory.allocated_bytes.likely / GIB, 1) == 13.1
    assert reading.training.batch_size == 4
    assert reading.warnings == tuple(elsewhere(path, "LitGPT", "train.micro_batch_size") for path in warned)
    assert reading.unsure == 0


@pytest.mark.parametrize(
    ("text", "more", "warned"),
    [
        (AXOLOTL, "stage_two:\n  micro_batch_size: 64\n  lora_r: 512\n", 2),
        (AXOLOTL, "wandb_notes: |\n  micro_batch_size: 64\n  sequence_len: 65536\n", 0),
        (AXOLOTL, "datasets_two:\n- micro_batch_size: 64\n", 1),
        (LLAMA_FACTORY, "train_later:\n  per_device_train_batch_size: 64\n  optim: sgd\n", 2),
        (TORCHTUNE, "profiler:\n  batch_size: 64\n  dtype: fp32\n", 2),
        (TORCHTUNE, "output_dir: >\n  x\n  batch_size: 64\n", 0),
        (TORCHTUNE, "generation:\n  tokenizer:\n    max_seq_len: 65536\n", 1),
    ],
)
def test_a_recipe_is_trained_alike_with_such_words_further_down(
    text: str, more: str, warned: int, tmp_path: Path
) -> None:
    alone, with_more = (read(a_file(tmp_path, "x.yaml", each)) for each in (text, text + more))

    assert with_more.training == alone.training
    assert sum(said.code.startswith("configs.ignored_") for said in with_more.warnings) == warned


def elsewhere(path: str, who: str, where: str) -> Sentence:
    return say("configs.ignored_elsewhere", path=path, who=who, where=where)


def test_torchtitan_and_json_are_read_by_their_depth_too(tmp_path: Path) -> None:
    more = "[training.stage_two]\nlocal_batch_size = 64\n[old]\ntensor_parallel_degree = 4\n"
    found = read(a_file(tmp_path, "x.toml", TORCHTITAN + more))
    assert found.training == read(a_file(tmp_path, "y.toml", TORCHTITAN)).training
    degree, size = "parallelism.tensor_parallel_degree", "training.local_batch_size"
    assert found.warnings == (
        elsewhere("old.tensor_parallel_degree", "torchtitan", degree),
        elsewhere("training.stage_two.local_batch_size", "torchtitan", size),
    )

    def of(given: object) -> tuple[Training, tuple[Sentence, ...]]:
        reading = read(None, model="gpt2", arguments=a_file(tmp_path, "a.json", json.dumps(given)))
        ignored = (said for said in reading.warnings if said.code.startswith("configs.ignored_"))
        return reading.training, tuple(ignored)

    assert of({"bf16": True, "later": {"optim": "sgd", "bf16": False}}) == (
        of({"bf16": True})[0],
        (
            say("configs.ignored_not_top_level", path="later.optim"),
            say("configs.ignored_not_top_level", path="later.bf16"),
        ),
    )
    deep = {"train_micro_batch_size_per_gpu": 2, "later": {"train_micro_batch_size_per_gpu": 64}}
    assert of(deep)[0].batch_size == 2
    inline = {"deepspeed": {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 8}}
    assert of(inline)[1] == ()  # DeepSpeed's block is a config of its own


def test_what_the_framework_reads_and_we_do_not_is_told(tmp_path: Path) -> None:
    def ignored(name: str, text: str) -> tuple[Sentence, ...]:
        return read(a_file(tmp_path, name, text)).warnings

    assert ignored("a.yaml", TINYLLAMA + "model_config:\n  n_layer: 2\n") == (
        say("configs.ignored_though_read", path="model_config", who="LitGPT"),
    )
    assert ignored("b.yaml", TINYLLAMA + "model_config:\n") == ()
    assert ignored("c.yaml", TORCHTUNE + "fsdp_cpu_offload: True\ntensor_parallel_dim: 1\n") == (
        say("configs.ignored_though_read", path="fsdp_cpu_offload", who="torchtune"),
    )


def test_a_number_that_cannot_be_read_may_be_overruled(tmp_path: Path) -> None:
    path = a_file(tmp_path, "x.yaml", TORCHTUNE.replace("batch_size: 2", "batch_size: ${sizes.batch}"))

    with refuses(BadInput, "configs.path_out_of_range") as refused:
        read(path)
    assert "--set batch_size=N" in refused.value.hint
    assert read(path, overrides=["batch_size=3"]).training.batch_size == 3
    said = a_file(tmp_path, "ds.json", json.dumps({"train_micro_batch_size_per_gpu": "4"}))
    with refuses(BadInput, "configs.path_out_of_range"):
        read(None, model="gpt2", arguments=said)
    assert read(None, model="gpt2", arguments=said, overrides=["batch_size=3"]).training.batch_size == 3


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (AXOLOTL, "tf32: false", "tf32: no"),
        (AXOLOTL, "gradient_checkpointing: true", "gradient_checkpointing: on"),
        (AXOLOTL, "sequence_len: 4096", "sequence_len: 4_096"),
        (AXOLOTL, "sequence_len: 4096", "sequence_len: 0x1000"),
        (AXOLOTL, "tf32: false", "tf32: false\nlr: 1e-4\nseed: 010\nrun_name: 12:30\nday: 2026-12-01"),
        (AXOLOTL, "adapter: qlora", "adapter: 'qlora'\nfsdp:\nlora_dropout:  # none"),
        (TORCHTUNE, "['q_proj', 'v_proj', 'output_proj']", "\n  - q_proj\n  - v_proj\n  - output_proj"),
        (TORCHTUNE, "\n  _component_: torch.optim.AdamW\n  fused: True\n  lr: 3e-4",
         " {_component_: torch.optim.AdamW, fused: yes, lr: 3e-4, betas: [0.9, 0.95]}"),
        (LITGPT, "learning_rate: 0.0002", "learning_rate: 2e-4\n  min_lr: 6.0e-5\n  betas: [0.9, 0.95]"),
        (LITGPT, "precision: bf16-true", "precision: 'bf16-true'  # not mixed"),
    ],
)  # fmt: skip
def test_the_same_said_otherwise_is_the_same(text: str, before: str, after: str, tmp_path: Path) -> None:
    assert before in text
    one, other = (read(a_file(tmp_path, "x.yaml", each)) for each in (text, text.replace(before, after)))

    assert one.training == other.training


def test_litgpts_published_optimizer_block_is_known(tmp_path: Path) -> None:
    """Every file of its config_hub has such a block; the old reader took `0.95]` for the optimizer's name."""
    block = (
        "optimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 0.0002\n    betas:\n      - 0.9\n"
        "      - 0.95\n"
    )
    reading = read(a_file(tmp_path, "x.yaml", LITGPT + block))

    assert (reading.training.optimizer, reading.training.optimizer_kernel) == ("adamw", "fused")
    assert (reading.unsure, reading.warnings) == (0, ())


@pytest.mark.parametrize("precision", ["no", "'no'", "NO", "off", "false"])
def test_accelerates_no_is_no(precision: str, tmp_path: Path) -> None:
    text = ACCELERATE.replace("mixed_precision: bf16", f"mixed_precision: {precision}")
    text = text.replace("distributed_type: FSDP", "distributed_type: NO").replace("num_processes: 8", "")
    t = read(None, model="gpt2", arguments=a_file(tmp_path, "a.yaml", text)).training

    assert (t.dtype, t.sharding, t.gpus) == ("float32", "none", 1)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_mark_at_the_front_and_line_ends_do_not_matter(mark: str, ends: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes((mark + LITGPT.replace("\n", ends)).encode())

    assert read(str(path)).training == read(a_file(tmp_path, "y.yaml", LITGPT)).training
