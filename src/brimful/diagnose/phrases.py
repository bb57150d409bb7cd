"""Fit's own phrases as sentences, so that they can be told in other languages.

Formulas and advice write plain English, with numbers in it. Here each such phrase stands once more as a
template; a phrase that is none of them stays as it is, and a test over many trainings is red until it stands
here.
"""

from __future__ import annotations

import re
from functools import cache

from brimful.language import Number, Sentence, Several, Size, say
from brimful.language.catalog import catalog, template
from brimful.units import GIB, KIB, MIB

# Where the peak is, and what a fix does: notes are joined by semicolons, and told part by part.
_TEMPLATES: tuple[Sentence, ...] = (
    say("diagnose.end_forward_pass"),
    say("diagnose.start_backward_pass"),
    say("diagnose.gradient_output_matrix"),
    say("diagnose.backward_pass_last_layer"),
    say("diagnose.end_backward_pass"),
    say("diagnose.optimizer_step"),
    say("diagnose.every_step"),
    say("diagnose.pipeline_stage"),
    say("diagnose.loading"),
    say("diagnose.before_first_step"),
    say("diagnose.fuses_loss_drops_fp32_copies"),
    say("diagnose.fuses_small_kernels"),
    say("diagnose.minutes_warm_up"),
    say("diagnose.score_matrix_never_stored"),
    say("diagnose.scores_stay_chip"),
    say("diagnose.logits_never_all_memory"),
    say("diagnose.needs_liger_kernel"),
    say("diagnose.logits_loss_slices_fp32_copies"),
    say("diagnose.logits_made_once"),
    say("diagnose.cheap_parts_each_layer_run"),
    say("diagnose.each_layer_run_again_backward"),
    say("diagnose.nothing_run_twice"),
    say("diagnose.only_cheap_parts_run_twice"),
    say("diagnose.adamws_state_8_bits"),
    say("diagnose.needs_bitsandbytes_torchao"),
    say("diagnose.optimizer_state_gradients_spread_over"),
    say("diagnose.weights_too_spread_over_gpus"),
    say("diagnose.weights_stay_whole_nothing_gather"),
    say("diagnose.whole_layers_then_run_not"),
    say("diagnose.each_gradient_used_dropped_once"),
    say("diagnose.no_clipping_whole_norm"),
    say("diagnose.multiplies_fp32_weights"),
    say("diagnose.half_activations"),
    say("diagnose.weights_gradients_adamw_bf16_too"),
    say("diagnose.trains_adapter_rank_not_model"),
    say("diagnose.adapter_over_weights_held_bits"),
    say("diagnose.frozen_weights_bits"),
    say("diagnose.weights_optimizer_state_rest_host"),
    say("diagnose.tensor_cores_multiply_several_times"),
    say("diagnose.fp32_bits_mantissa_multiplies"),
    say("diagnose.card_no_bf16_hardware"),
    say("diagnose.fp16_needs_gradscaler"),
    say("diagnose.one_kernel_whole_optimizer_step"),
    say("diagnose.larger_multiplies_fewer_launches"),
    say("diagnose.still_sequences_step"),
    say("diagnose.mfu_then_peak"),
    say("diagnose.change_training_script"),
    say("diagnose.change"),
    say("diagnose.change_2"),
    say("diagnose.torch_compile_not_run_triton"),
    say("diagnose.set_compile_false"),
    say("diagnose.no_bf16_hardware_speed_taken"),
    say("diagnose.dtype_float16_faster"),
    say("diagnose.vocabulary_no_multiple_64"),
    say("diagnose.fills_tensor_cores_better"),
    say("diagnose.memory_shows_framework_recalled_not"),
    say("diagnose.memory_shows_framework_estimated_not"),
    say("diagnose.speed_experts_derived_held_against"),
    say("diagnose.load_taken_even"),
    say("diagnose.no_set_changes_fits_one"),
    say("diagnose.no_set_changes_fits"),
    say("diagnose.them_sharing_weights_states_zero3"),
    say("diagnose.not_corrected_own_runs_were_2"),
    say("diagnose.corrected_runs_own_brimful_runs"),
)
# Why a part of the memory is there, as it stands beside the part.
_REASONS: tuple[Sentence, ...] = (
    say("diagnose.m_parameters"),
    say("diagnose.m_parameters_bit"),
    say("diagnose.m_parameters_over_gpus"),
    say("diagnose.only_part_trained"),
    say("diagnose.one_each_trained_parameter"),
    say("diagnose.s_numbers_each_trained_parameter"),
    say("diagnose.second_copy_gradients"),
    say("diagnose.autocasts_copies"),
    say("diagnose.two_layers_tables_whole"),
    say("diagnose.all_stage_every_micro_batch"),
    say("diagnose.cublas_scratch"),
    say("diagnose.n_4_bit_layers_inputs_freed"),
    say("diagnose.norms_inputs"),
    say("diagnose.norms_inputs_fp32"),
    say("diagnose.norm_output_q_k_v"),
    say("diagnose.norm_output_q_k_v_2"),
    say("diagnose.input_wide_between"),
    say("diagnose.experts_each_token_router"),
    say("diagnose.final_norm_pixels"),
    say("diagnose.one_byte_each_number_dropped"),
    say("diagnose.inputs_adapted_layers"),
    say("diagnose.final_norm_token_ids"),
    say("diagnose.checkpointing_keeps_each_layers_input"),
    say("diagnose.layer_inputs_attention_every_other"),
    say("diagnose.n_1_time"),
    say("diagnose.logits_gradient_zeros"),
    say("diagnose.logits_fp32_copies"),
    say("diagnose.old_new"),
    say("diagnose.old_new_losss_copies"),
    say("diagnose.still_held_loop"),
    say("diagnose.n_4_bit_output_matrix_16"),
    say("diagnose.n_4_bit_output_matrix_16_2"),
    say("diagnose.gradient_vocabulary_table_before_added"),
    say("diagnose.one_layers_gradients"),
    say("diagnose.one_layers_gradients_activations_made"),
    say("diagnose.first_layer_tied_tables_gradients"),
    say("diagnose.copies_optimizer_makes_way"),
    say("diagnose.freed_blocks_pytorch_keeps_rounding"),
    say("diagnose.driver_kernels_outside_pytorch"),
    say("diagnose.desktop_other_processes_said"),
    say("diagnose.desktop_other_processes_assumed"),
    say("diagnose.runs_own_say_brimful_runs"),
)


# What `brimful trace` notes, and the changes it names.
_TRACED: tuple[Sentence, ...] = (
    say("diagnose.take_loss_chunks_batch_use"),
    say("diagnose.checkpoint_layers_halve_batch_accumulate"),
    say("diagnose.call_scaled_dot_product_attention"),
    say("diagnose.n_8_bit_optimizer_keeps_quarter"),
    say("diagnose.sharding_spreads_over_gpus"),
    say("diagnose.fused_true_updates_without_temporaries"),
    say("diagnose.zero_grad_set_none_true"),
    say("diagnose.compiled_parts_kept_exact_temporaries"),
    say("diagnose.compiled_function_module_could_not"),
    say("diagnose.recurrent_layers_traced_cell_cell"),
    say("diagnose.gpu_cudnn_runs_them_whole"),
    say("diagnose.nccls_own_buffers_not_trace"),
    say("diagnose.cudnns_workspaces_convolutions_not_trace"),
    say("diagnose.after_steps_script_ended"),
)
# What argparse and the operating system say, in their own words.
_FOREIGN: tuple[Sentence, ...] = (
    say("diagnose.following_arguments_required"),
    say("diagnose.argument_expected_one_argument"),
    say("diagnose.argument_expected_least_one_argument"),
    say("diagnose.argument_invalid_int_value"),
    say("diagnose.argument_invalid_float_value"),
    say("diagnose.argument_invalid_choice_choose_from"),
    say("diagnose.argument"),
    say("diagnose.no_such_file_directory"),
    say("diagnose.permission_denied"),
    say("diagnose.directory"),
    say("diagnose.not_directory"),
    say("diagnose.no_space_left_device"),
    say("diagnose.read_only_file_system"),
)
_KINDS = {
    "n": r"[\d,]+",
    "all": r"\d+",
    "millions": r"[\d,.]+",
    "dtype": r"\w+",
    "name": r"\w+",
    "width": r"\d+",
    "shape": r"\([\d, ]+\)",
}
_KINDS_OF_THINGS = {"model": say("diagnose.model")}  # one word that stands inside a phrase
_DEEPEST = 3  # phrases within phrases


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates as patterns: those of formulas first, and the more words a template has the earlier."""
    formulas = [*_TEMPLATES, *_REASONS, *_TRACED]
    own = sorted(((_english(s.code), s.code) for s in formulas), key=lambda pair: "{" in pair[0])
    return tuple((_pattern(text, _KINDS), code) for text, code in own)


@cache
def _plain_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """What readers say as plain English, and what others do."""
    codes = [*(f"plain.{name}" for name in catalog("plain")), *(sentence.code for sentence in _FOREIGN)]
    texts = [(_english(code), code) for code in codes]
    texts.sort(key=lambda pair: -len(re.sub(r"\{\w+\}", "", pair[0])))
    return tuple((_pattern(text, {}), code) for text, code in texts)


def _english(code: str) -> str:
    return str(template(code, "en"))


def _pattern(text: str, kinds: dict[str, str]) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", text)
    written = "".join(
        re.escape(part.replace("{{", "{").replace("}}", "}"))
        if i % 2 == 0
        else f"(?P<{part}>{_any(part, kinds)})"
        for i, part in enumerate(parts)
    )
    return re.compile(written, re.DOTALL)


def _any(name: str, kinds: dict[str, str]) -> str:
    if name.startswith("n_"):
        return r"-?\d[\d,]*(?:\.\d+)?"
    if name.startswith("size_"):
        return r"[\d.]+ (?:[KMG]i)?B"
    return kinds.get(name, ".+" if kinds else ".*?")


def known(part: str) -> Sentence | None:
    """One part of a phrase as a sentence; None where nobody has written it down here."""
    for pattern, text in _patterns():
        if (match := pattern.fullmatch(part)) is not None:
            values = {name: _value(name, value) for name, value in match.groupdict().items()}
            return Sentence(text, values)
    return None


def told(text: str, depth: int = 0) -> Sentence | Several | str:
    """A problem, hint or warning as a sentence, with the phrases inside it; else as it is."""
    if (sentence := known(text)) is not None:
        return sentence
    for pattern, code in _plain_patterns():
        if (match := pattern.fullmatch(text)) is not None:
            values = {name: _inner(name, value, depth) for name, value in match.groupdict().items()}
            return Sentence(code, values)
    before, colon, after = text.partition(": ")  # 'train.json: nested too deeply'
    if colon and isinstance(said := told(after, depth + 1), Sentence):
        return Several((before, said), between=": ")
    return text


def warned(text: str) -> Several | Sentence | str:
    """A warning of a reader or a formula, or what an error says."""
    parts = text.split("; ")
    if all(known(part) is not None for part in parts):
        return phrase(text)
    return told(text)


def _inner(name: str, shown: str, depth: int) -> object:
    if name.startswith("n_"):
        return Number(float(shown.replace(",", "")), len(shown.partition(".")[2]))
    if name.startswith("size_"):
        number, unit = shown.split(" ")
        return Size(float(number) * {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}[unit])
    words = shown.strip()
    if words in _KINDS_OF_THINGS:
        return _KINDS_OF_THINGS[words]
    if " or " in words and " " not in words.replace(" or ", ""):  # 'rtx-4070 or rtx-4090'
        first, _, rest = words.partition(" or ")
        either = say("diagnose.or", one=first, other=_inner(name, rest, depth))
        return Several((shown[: shown.index(words)], either, shown[len(shown.rstrip()) :]), between="")
    if depth >= _DEEPEST or " " not in words:
        return shown
    start = shown.index(words)
    return Several((shown[:start], told(words, depth + 1), shown[start + len(words) :]), between="")


def _value(name: str, shown: str) -> object:
    plain = shown.replace(",", "")
    if name == "n":
        return int(plain)
    return Number(float(plain), 1) if name == "millions" else shown


def phrase(text: str, between: str = "; ") -> Several:
    """A phrase of Fit, part by part; parts that are not known stay as they are."""
    return Several(tuple(known(part) or part for part in text.split(between)), between=between)
