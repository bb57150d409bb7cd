"""A queues file: the limits of each queue, as TOML with one table per queue.

[vision]
gpus = 8
user_gpus = 4
type_gpus = { h100-sxm-80gb = 4 }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from brimful.errors import BadInput
from brimful.language import say
from brimful.language.failures import os_errors_as
from brimful.specs.toml import read_toml


def read_queues(path: Path) -> list[dict[str, Any]]:
    """In the form of `PUT /v1/queues`; the server checks their values."""
    try:
        with os_errors_as("language.cannot_read", path=path):
            tables = read_toml(path)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(say("client.bad_queues_file", path=path, why=error)) from error
    for name, table in tables.items():
        if not isinstance(table, dict) or "queue" in table:
            raise BadInput(
                say("client.bad_queues_file", path=path, why=say("client.queue_is_table", name=name))
            )
    return [{"queue": name, **table} for name, table in tables.items()]
