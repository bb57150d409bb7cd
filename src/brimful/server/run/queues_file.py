"""The queues file that a server starts with, validated like the API's."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from brimful.client.queues import read_queues
from brimful.errors import BadInput
from brimful.fleet.queues import Quota
from brimful.language import say
from brimful.server.api.requests import QueuesRequest, bad_shape


def queues_of(path: str) -> tuple[Quota, ...]:
    given = {"queues": read_queues(Path(path))}
    try:
        return QueuesRequest.model_validate(given).as_quotas()
    except (ValidationError, BadInput) as error:
        why = bad_shape(error.errors(), given).said if isinstance(error, ValidationError) else error.said
        raise BadInput(say("client.bad_queues_file", path=path, why=why)) from error
