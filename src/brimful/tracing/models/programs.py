"""The framework's own model for a config, trained as the config says: for `fit --exact` and the oracle.

From a `Model` and a `Training` to a program: transformers' classes (with PEFT for LoRA) for a model of one of
its families, LitGPT's for its own, and nanoGPT's GPT for one without a family. No weights are loaded, and the
program is traced, never run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from brimful.errors import Refused
from brimful.language import say
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.presets import PYTHON_GELU
from brimful.specs.training import Training

Step = Callable[[], None]

# What LoRA adapts, in the usual order of adding it (`Training.targets`).
_LORA_ATTENTION = ("q_proj", "v_proj", "k_proj", "o_proj")
_LORA = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        (*_LORA_ATTENTION, "gate_proj", "up_proj", "down_proj"),
    ),
    "opt": ("q_proj", "v_proj", "k_proj", "out_proj", "fc1", "fc2"),
    "phi": ("q_proj", "v_proj", "k_proj", "dense", "fc1", "fc2"),
}
_GPT = ("gpt2", "gpt_neo", "gpt_neox", "opt", "mpt", "falcon", "phi", "bert")
_LLAMA = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
FAMILIES = (*_GPT, *_LLAMA)
_OPTIMIZERS = ("adamw", "adam", "sgd", "momentum")


def why_not(model: Model, training: Training) -> str | None:
    """What part of a config has no program here, as the code of a sentence; None if all of it has one."""
    several = training.gpus > 1
    checks = {
        "compiled": training.compiled and (bool(model.family) or training.framework.name == "litgpt"),
        "several_gpus": several,
        "optimizer": training.optimizer not in _OPTIMIZERS or training.master_weights,
        "adapter": training.tuning == "adapter",
        "quantized": training.frozen_bits > 0,
        "checkpointing": training.checkpointing == "selective",
        "loss": training.fused_loss or (training.loss_chunks > 1 and training.framework.name != "litgpt"),
        "offload": training.offload_states or training.offload_activations or training.in_backward,
        "fp8": training.fp8,
        "torch": training.torch.keeps_gradients,
        "framework": training.framework.name not in ("pytorch", "transformers", "litgpt"),
        "family": _no_family(model, training),
        "lora": training.tuning == "lora" and not _has_lora(model, training),
    }
    return next((code for code, missing in checks.items() if missing), None)


def _no_family(model: Model, training: Training) -> bool:
    if training.framework.name == "litgpt":
        return model.family not in ("llama", "gpt_neox")
    if not model.family:
        return model.gated or model.rotary or model.encoder or model.images is not None
    return model.family not in FAMILIES or model.experts is not None or model.classes is not None


def _has_lora(model: Model, training: Training) -> bool:
    if training.framework.name == "litgpt":
        return training.targets == 2
    return model.family in _LORA and training.framework.name == "transformers"


def program(model: Model, training: Training) -> Callable[[], Step]:
    """A builder for `trace`: it makes model and optimizer, and returns one optimizer step."""
    missing = why_not(model, training)
    if missing is not None:
        raise Refused(say("tracing.no_exact", what=say(f"tracing.no_exact_{missing}")), code="no_exact")
    if training.framework.name == "litgpt":
        return _litgpt(model, training)
    return _transformers(model, training) if model.family else _nanogpt(model, training)


def exact(model: Model, training: Training, gpu: Gpu) -> Any:
    """The `Trace` of the framework's own model on this card."""
    from brimful.tracing.program import trace

    return trace(program(model, training), gpu=gpu.name)


# ---- loops


def _optimizer(parameters: Any, training: Training) -> Any:
    import torch

    kernel = {"fused": True} if training.optimizer_kernel == "fused" else {}
    if training.optimizer_kernel == "loop":
        kernel = {"foreach": False}
    trained = [each for each in parameters if each.requires_grad]
    if training.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if training.optimizer == "momentum" else 0.0
        return torch.optim.SGD(trained, lr=0.1, momentum=momentum, **kernel)
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[training.optimizer](trained, **kernel)


def _steps(
    forward: Callable[[Any], Any], optimizer: Any, training: Training, *, vocab: int, loss_of: Any
) -> Step:
    """Forward, backward, step. The model's output is held until the next micro-step replaces it.

    The loops of nanoGPT, LitGPT and most scripts do the same: their variables outlive the step.
    """
    import torch

    shape = (training.batch_size, training.sequence_tokens)

    def cast() -> AbstractContextManager[Any]:
        if training.half and training.casts == "autocast":
            autocast: AbstractContextManager[Any] = torch.autocast("cuda", getattr(torch, training.dtype))
            return autocast
        return nullcontext()

    out = None

    def step() -> None:
        nonlocal out
        for _ in range(training.accumulation):
            ids = torch.randint(vocab, shape).to("cuda")
            with cast():
                out = forward(ids)
            (loss_of(out) / training.accumulation).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _weights_dtype(training: Training) -> Any:
    import torch

    return getattr(torch, training.weights_dtype)


# ---- transformers and PEFT


def _transformers(model: Model, training: Training) -> Callable[[], Step]:
    def build() -> Step:
        import transformers

        transformers.logging.set_verbosity_error()
        kind = transformers.AutoModelForMaskedLM if model.encoder else transformers.AutoModelForCausalLM
        attention = "eager" if training.attention == "math" else None
        net = kind.from_config(
            config_of(model, training), dtype=_weights_dtype(training), attn_implementation=attention
        )
        net = net.cuda().train()
        net.config.use_cache = False
        if training.tuning == "lora":
            net = _with_lora(net, model, training)
        if training.checkpointing == "full":
            net.gradient_checkpointing_enable()
            if training.tuning == "lora":
                net.enable_input_require_grads()
        optimizer = _optimizer(net.parameters(), training)
        return _steps(
            lambda ids: net(input_ids=ids, labels=ids), optimizer, training,
            vocab=model.vocab, loss_of=lambda out: out.loss,
        )  # fmt: skip

    return build


def _with_lora(net: Any, model: Model, training: Training) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = list(_LORA[model.family][: training.targets])
    return get_peft_model(net, LoraConfig(r=training.rank, target_modules=targets, task_type="CAUSAL_LM"))


def config_of(model: Model, training: Training) -> Any:
    """transformers' configuration of a model of its family."""
    from transformers import AutoConfig

    places = max(model.positions, training.sequence_tokens)
    found: dict[str, Any] = {
        "vocab_size": model.vocab, "hidden_size": model.width, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "intermediate_size": model.mlp_width,
        "max_position_embeddings": places, "tie_word_embeddings": model.tied,
        "attention_dropout": model.attention_dropout,
    }  # fmt: skip
    gelu = "gelu_new" if model.gelu_tensors == PYTHON_GELU else "gelu"
    if model.family in _LLAMA:
        found |= {"num_key_value_heads": model.kv_heads, "head_dim": model.head_width}
        if model.qkv_bias is not None and model.family == "llama":
            found["attention_bias"] = model.qkv_bias
        if model.family == "phi3":
            found |= {"pad_token_id": 0, "resid_pdrop": model.dropout, "embd_pdrop": model.dropout}
    else:
        found |= _GPT_WORDS[model.family](model, gelu, places)
    return AutoConfig.for_model(model.family, **found)


def _gpt2_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {
        "n_inner": model.mlp_width, "n_positions": places, "activation_function": gelu,
        "resid_pdrop": model.dropout, "embd_pdrop": model.dropout, "attn_pdrop": model.attention_dropout,
    }  # fmt: skip


def _gpt_neo_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {
        "num_layers": model.layers, "num_heads": model.heads, "activation_function": gelu,
        "attention_types": [[["global", "local"], model.layers // 2]],
        "resid_dropout": model.dropout, "embed_dropout": model.dropout,
    }  # fmt: skip


def _gpt_neox_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {"use_parallel_residual": model.parallel, "hidden_dropout": model.dropout, "hidden_act": gelu}


def _opt_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {
        "ffn_dim": model.mlp_width, "word_embed_proj_dim": model.width, "dropout": model.dropout,
        "max_position_embeddings": max(places - 2, 1),
    }  # fmt: skip


def _mpt_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {
        "d_model": model.width, "n_heads": model.heads, "n_layers": model.layers, "max_seq_len": places,
        "expansion_ratio": model.mlp_width // model.width, "resid_pdrop": model.dropout,
    }  # fmt: skip


def _falcon_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    new = model.norms == 2
    return {
        "ffn_hidden_size": model.mlp_width, "parallel_attn": model.parallel, "alibi": False,
        "bias": model.bias, "new_decoder_architecture": new, "multi_query": model.kv_heads == 1,
        "num_kv_heads": model.kv_heads, "hidden_dropout": model.dropout,
    }  # fmt: skip


def _phi_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {"hidden_act": gelu, "resid_pdrop": model.dropout, "embd_pdrop": model.dropout}


def _bert_words(model: Model, gelu: str, places: int) -> dict[str, Any]:
    return {
        "hidden_dropout_prob": model.dropout, "attention_probs_dropout_prob": model.attention_dropout,
        "hidden_act": gelu, "type_vocab_size": model.segments,
    }  # fmt: skip


_GPT_WORDS: dict[str, Callable[[Model, str, int], dict[str, Any]]] = {
    "gpt2": _gpt2_words,
    "gpt_neo": _gpt_neo_words,
    "gpt_neox": _gpt_neox_words,
    "opt": _opt_words,
    "mpt": _mpt_words,
    "falcon": _falcon_words,
    "phi": _phi_words,
    "bert": _bert_words,
}


# ---- LitGPT


def _litgpt(model: Model, training: Training) -> Callable[[], Step]:
    """Its finetuning loops: `finetune/full.py` and `finetune/lora.py` of 0.5."""

    def build() -> Step:
        from litgpt.utils import chunked_cross_entropy

        net, chunk = _litgpt_net(model, training)

        logits: Any = None

        def forward(ids: Any) -> Any:
            nonlocal logits  # the old ones are freed before the loss is computed
            logits = net(ids, lm_head_chunk_size=chunk)
            if chunk:
                logits[-1] = logits[-1][..., :-1, :]
                return chunked_cross_entropy(logits, ids[..., 1:])
            return chunked_cross_entropy(logits[..., :-1, :], ids[..., 1:])

        optimizer = _optimizer(net.parameters(), training)
        return _steps(forward, optimizer, training, vocab=model.vocab, loss_of=lambda loss: loss)

    return build


def _litgpt_net(model: Model, training: Training) -> tuple[Any, int]:
    import torch
    from litgpt import lora as adapted
    from litgpt import model as plain

    llama = model.family == "llama"
    sizes: dict[str, Any] = {
        "block_size": training.sequence_tokens, "padded_vocab_size": model.vocab, "n_layer": model.layers,
        "n_head": model.heads, "n_embd": model.width, "n_query_groups": model.kv_heads, "bias": model.bias,
        "head_size": model.head_width, "rotary_percentage": 1.0 if llama else 0.25,
        "parallel_residual": model.parallel, "norm_class_name": "RMSNorm" if llama else "LayerNorm",
        "mlp_class_name": "LLaMAMLP" if llama else "GptNeoxMLP", "intermediate_size": model.mlp_width,
        "shared_attention_norm": False,
    }  # fmt: skip
    if training.tuning == "lora":
        config: Any = adapted.Config(
            **sizes, lora_r=training.rank, lora_alpha=16, lora_dropout=0.05, lora_query=True, lora_value=True
        )
        net: Any = adapted.GPT(config)
        adapted.mark_only_lora_as_trainable(net)
    else:
        net = plain.GPT(plain.Config(**sizes))
    net = net.to(device="cuda", dtype=_weights_dtype(training)).train()
    if training.checkpointing == "full":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(net, check_fn=lambda part: isinstance(part, plain.Block))
    torch.set_grad_enabled(True)
    return net, 128 if training.tuning == "lora" else 0


# ---- nanoGPT


def _nanogpt(model: Model, training: Training) -> Callable[[], Step]:
    def build() -> Step:
        import torch

        from brimful.tracing.models.gpt import Gpt

        net: Any = Gpt(model, checkpoint=training.checkpointing == "full", math=training.attention == "math")
        net = net.to(device="cuda", dtype=_weights_dtype(training)).train()
        if training.compiled:
            net = torch.compile(net)
        optimizer = _optimizer(net.parameters(), training)
        return _steps(
            lambda ids: net(ids, ids), optimizer, training, vocab=model.vocab, loss_of=lambda out: out[1]
        )

    return build
