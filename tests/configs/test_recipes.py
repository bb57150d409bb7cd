"""Recipes of other frameworks, read into the same training as flags would say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.configs.read import read
from brimful.errors import BadInput
from brimful.fit.count import parameters
from brimful.fit.states import weights_bytes
from brimful.specs.training import Training

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
    ],
)
def test_what_cannot_be_read_is_refused(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        read(a_file(tmp_path, name, text))
    assert refused.value.hint


def test_a_word_nobody_knows_gets_its_fallback_and_is_told(tmp_path: Path) -> None:
    text = LITGPT.replace("bf16-true", "int3-maybe").replace("lora_r: 32", "lora_r: -1e400")

    assert any("precision" in said for said in read(a_file(tmp_path, "x.yaml", text)).warnings)


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
