"""Hugging Face's Trainer: a model's config.json or name, and TrainingArguments in JSON or YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.configs.arguments import (
    ARGUMENTS,
    DEFAULTS,
    KNOWN,
    MODEL_WORDS,
    own_name,
    sort_arguments,
    training_of,
)
from brimful.configs.huggingface import Shape, is_model_config, read_shape
from brimful.configs.paths import paths
from brimful.configs.plain import read_plain
from brimful.configs.reading import Reading, some_of
from brimful.configs.settings import apply_settings, own_word, parse_sets, unknown_key
from brimful.errors import BadInput, NotFound
from brimful.language import Sentence, say
from brimful.specs.estimate import Assumption
from brimful.specs.presets import find_preset

_MAX_LISTED = 20


def read_trainer(
    config: str | None, *, model: str | None, arguments: str | None, overrides: Sequence[str]
) -> Reading:
    """A model, by its config.json or its name, alone or with arguments; or arguments that name a model."""
    if config is None:
        assert model is not None
        assert arguments is not None
        return _read_either(_preset_shape(model), Path(arguments), overrides)
    found, name = read_plain(Path(config)), Path(config).name
    if is_model_config(found):
        shape = read_shape(found, name=name)
        if arguments is None:
            return _read_arguments(shape, {}, None, overrides)
        return _read_either(shape, Path(arguments), overrides)
    named = next((found[word] for word in MODEL_WORDS if isinstance(found.get(word), str)), None)
    if named is None:
        raise BadInput(say("configs.no_model_no_sizes", name=name))
    return _read_arguments(_preset_shape(named), found, Path(config), overrides)


def read_words(model: str, found: Mapping[str, Any], overrides: Sequence[str] = ()) -> Reading:
    """A model, by its name or its folder, trained as a command line in Trainer's own names says."""
    config = Path(model) / "config.json"
    shape = read_shape(read_plain(config), name=config.name) if config.is_file() else _preset_shape(model)
    return _read_arguments(shape, found, None, overrides)


def _read_either(shape: Shape, file: Path, overrides: Sequence[str]) -> Reading:
    """TrainingArguments, or the equivalent of a DeepSpeed or accelerate file; that has no such lines."""
    from brimful.configs.recipes import as_arguments

    found = read_plain(file)
    overruled = {own_name(key) or key for key in parse_sets(overrides)}
    if (translated := as_arguments(found, name=file.name, overruled=overruled)) is not None:
        given, words = translated
        return _read_arguments(shape, given, None, [*words, *overrides])
    return _read_arguments(shape, found, file, overrides)


def _preset_shape(name: str) -> Shape:
    try:
        preset = find_preset(name)
    except NotFound as unknown:
        raise NotFound(
            unknown.said, hint=say("configs.hint_or_config_json", hint=unknown.way_out), code=unknown.code
        ) from None
    return Shape(preset.model, preset.context_tokens, (), 0)


def _read_arguments(
    shape: Shape, found: Mapping[str, Any], file: Path | None, overrides: Sequence[str]
) -> Reading:
    """The shape trained as the arguments say, or by Trainer's defaults without arguments."""
    given, strange = sort_arguments(found)
    if file is not None and isinstance(given.get("deepspeed"), str):
        given["deepspeed"] = _named_config(file, given["deepspeed"])
    ours = {}
    for key, value in parse_sets(overrides).items():
        # A name both know is read in our sense, which is more specific: checkpointing=selective,
        # attention=math.
        if own_word(key) is not None:
            ours[key] = value
        elif (theirs := own_name(key)) is not None:
            given[theirs] = value
        else:
            raise unknown_key(key, KNOWN)
    name = file.name if file else say("configs.training_arguments")
    training, warnings, unsure = training_of(given, name=name, context=shape.context)
    said = [
        Assumption(name=key, value=value, why=say("configs.why_arguments_default"))
        for key, value in DEFAULTS.items()
        if key not in given
    ]
    if "torch_dtype" not in given and "precision" not in ours:
        said.append(Assumption(name="torch_dtype", value="float32", why=say("configs.why_trl_fp32")))
        if shape.stored in ("bfloat16", "float16"):
            warnings.append(say("configs.weights_taken_fp32", dtype=shape.stored))
    said.append(Assumption(name="gpus", value=1, why=say("configs.why_torchrun_says")))
    if strange:
        warnings.append(say("configs.not_known_without_effect", names=some_of(strange, _MAX_LISTED)))
    warnings += _nested_warnings(found)
    reading = Reading(
        model=shape.model,
        training=training,
        assumed=tuple(said),
        warnings=(*shape.warnings, *warnings),
        unsure=shape.unsure + unsure,
        dialect=ARGUMENTS,
        file=file,
    )
    reading = apply_settings(reading, ours)
    if reading.training.gpus == 1:
        return _on_one_gpu(reading)
    if {"gpus", "sharding", "shards"} & {own_word(key) for key in ours}:
        return reading  # already spread over them
    return apply_settings(reading, {"gpus": reading.training.gpus, "sharding": reading.training.sharding})


def _nested_warnings(found: Mapping[str, Any]) -> list[Sentence]:
    """Warnings about settings that count at the top level but are nested; DeepSpeed's block is read."""
    warnings = [
        say("configs.ignored_not_top_level", path=path[:80])
        for path in paths(found)
        if "." in path and own_name(path.rpartition(".")[2]) and not path.startswith("deepspeed.")
    ]
    return warnings[:_MAX_LISTED]


def _named_config(file: Path, name: str) -> Any:  # noqa: ANN401 - what the file holds, or the name if there is none
    """A config that the arguments name, if it is in their folder; nothing else is followed."""
    plain = Path(name).name
    other = file.parent / plain
    return read_plain(other) if plain.endswith(".json") and other.is_file() else name


def _on_one_gpu(reading: Reading) -> Reading:
    """On one GPU there is nothing to spread over, whatever the arguments say."""
    if reading.training.sharding == "none":
        return reading
    said = say("configs.sharding_without_effect", sharding=reading.training.sharding)
    training = replace(reading.training, sharding="none", shards=1)
    return replace(reading, training=training, warnings=(*reading.warnings, said))
