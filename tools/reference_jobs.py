"""docs/reference/job-file.md and job.schema.json, from the table of fields."""

from __future__ import annotations

import json
from typing import Any

from brimful.configs.yaml_file import MAX_BYTES
from brimful.language import say
from brimful.server.jobfiles import sbatch, skypilot
from brimful.server.jobfiles.own import FIELDS, schema
from tools.markdown import NOTE, row


def job_schema() -> str:
    return json.dumps(schema(), indent=2) + "\n"


HEAD = """# Job files

`brimful submit FILE` takes a job file of brimful's own (YAML or JSON), a SkyPilot task, or a Slurm batch
script. What a file says and brimful cannot do is named and refused; `--without-unsupported` submits it all
the same. A file has at most {bytes:,} bytes. YAML needs `pip install 'brimful[yaml]'`, which the server has.
Anchors, aliases, tags and duplicate keys are refused; dates and `12:30` are text.

## brimful.yaml

For editors: [job.schema.json](job.schema.json).

```yaml
name: tiny
command: python train.py --steps 200
gpus: 2
gpu: [h100, a100]
budget: 12.50
fit: config/train_gpt2.py
env_from: [WANDB_API_KEY]
```

| Field | Form | Meaning |
|---|---|---|"""

OWN = """
With `fit`, bytes and step time are predicted for each GPU type the job may use, or each that the fleet has.
Types that cannot hold it are left out and the rest are candidates at their own speed, old cards too; where
none can, the job is refused with the fixes.

A job's environment holds what `env` and `--env` say, what `env_from` names, and of your shell no more than
`PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `LANG`, `LC_ALL` and `TZ`.

## SkyPilot tasks
"""


def job_file_page() -> str:
    lines = [NOTE, HEAD.format(bytes=MAX_BYTES)]
    lines += [row(f"`{name}`", _form(field.schema), field.help(name)) for name, field in FIELDS.items()]
    read = _list(sorted(skypilot.KNOWN - {"resources"}))
    lines += [
        OWN,
        f"Read: {read}, and of `resources` `accelerators`, `cpus` and `memory`.",
        "`num_nodes` multiplies them. `setup` runs before `run` at every start.\n",
        "| Not supported | Why |\n|---|---|",
    ]
    lines += [row(f"`{name}`", str(say(f"jobfile.sky_{name}"))) for name in skypilot.CANNOT]
    lines += [
        row(f"`resources.{name}`", str(say(f"jobfile.sky_{name}"))) for name in skypilot.CANNOT_RESOURCE
    ]
    lines += [
        "\n## Slurm batch scripts\n",
        f"Read: {_list([f'--{name}' for name in sorted({*sbatch.READERS, *sbatch.COUNTED})])}.",
        "`--account` is the tenant and `--partition` the queue. The script is kept as it is at submit.\n",
        "| Left out, with a note | Why |\n|---|---|",
    ]
    lines += [row(f"`--{name}`", str(say(f"jobfile.drop_{why}"))) for name, why in sbatch.LEFT_OUT.items()]
    lines += ["\n| Not supported | Why |\n|---|---|"]
    lines += [row(f"`--{name}`", str(say(f"jobfile.sbatch_{name}"))) for name in sbatch.CANNOT]
    return "\n".join(lines) + "\n"


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _form(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_form(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema["type"] == "array":
        return "list of texts"
    if schema["type"] == "object":
        return "mapping"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}[
        schema["type"]
    ]
