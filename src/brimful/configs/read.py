"""Read any source: a nanoGPT file, a config.json, training arguments, or a model's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brimful.configs.reading import Reading
from brimful.errors import BadInput
from brimful.language import say


def read(
    config: str | None,
    *,
    model: str | None = None,
    arguments: str | None = None,
    overrides: Sequence[str] = (),
) -> Reading:
    """Model and training, with `key=value` overrides; what each source leaves open is listed.

    A .py file is nanoGPT's; .toml is torchtitan's; .yaml may be a recipe of LitGPT or torchtune; other .json
    and .yaml are Hugging Face's model config or training arguments; a bare name uses the flags' defaults.
    Readers are imported on demand, to keep start-up fast.
    """
    if config is not None and (Path(config) / "config.json").is_file():
        config = str(Path(config) / "config.json")  # a checkpoint folder
    if config is not None and model is not None:
        raise BadInput(say("configs.config_and_model"))
    if config is not None and arguments is None and Path(config).suffix.lower() in (".yaml", ".yml", ".toml"):
        from brimful.configs.recipes import read_recipe

        if (recipe := read_recipe(Path(config), overrides)) is not None:
            return recipe
    if config is not None and Path(config).suffix.lower() not in (".json", ".yaml", ".yml", ".toml"):
        if arguments is not None:
            raise BadInput(say("configs.args_needs_model"))
        from brimful.configs.nanogpt import read_nanogpt

        return read_nanogpt(Path(config), overrides)
    if config is None and model is None:
        raise BadInput(say("configs.nothing_to_fit"))
    if model is not None and arguments is None:
        from brimful.configs.flags import read_flags
        from brimful.configs.settings import parse_sets

        return read_flags(model, parse_sets(overrides))
    from brimful.configs.trainer import read_trainer

    return read_trainer(config, model=model, arguments=arguments, overrides=overrides)
