"""The file of queues that a server is started with, held to the same shape as the API's."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from brimful.client.queues import read_queues
from brimful.errors import BadInput
from brimful.fleet.queues import Quota
from brimful.language import say
from brimful.server.api.requests import QueuesRequest


def queues_of(path: str) -> tuple[Quota, ...]:
    given = read_queues(Path(path))
    try:
        return QueuesRequest.model_validate({"queues": given}).as_quotas()
    except ValidationError as error:
        first = error.errors()[0]
        at, field = first["loc"][1], ".".join(map(str, first["loc"][2:]))
        where = f"[{given[int(at)]['queue']}] {field}" if isinstance(at, int) else field
        why = say("server.bad_shape", where=where, why=first["msg"][:500])
        raise BadInput(say("client.bad_queues_file", path=path, why=why)) from error
