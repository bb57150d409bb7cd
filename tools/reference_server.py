"""docs/reference/settings.md and docs/reference/api.md, from the server's own tables."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from fastapi.routing import APIRoute

from brimful.server.api import Submission, make_router
from brimful.server.settings import LIMITS, Settings
from tools.markdown import NOTE, row


def settings_page() -> str:
    lines = [
        NOTE,
        "# Settings\n",
        "Each setting is an option of `brimful up` or an environment variable. The option wins.\n",
        "| Option | Environment | Default | Limits | Meaning |\n|---|---|---|---|---|",
    ]
    for each in fields(Settings):
        low_high = LIMITS.get(each.name)
        lines.append(
            row(
                f"`--{each.name.replace('_', '-')}`",
                f"`BRIMFUL_{each.name.upper()}`",
                f"`{each.default}`" if each.default != "" else "",
                f"{low_high[0]} to {low_high[1]}" if low_high else "",
                each.metadata["help"],
            )
        )
    return "\n".join(lines) + "\n"


def api_page() -> str:
    # The routes are described, not called: no service stands behind them here.
    router = make_router(cast(Any, None), lambda _request: None)
    lines = [
        NOTE,
        "# API\n",
        "JSON over HTTP on loopback. Every answer is one envelope, and an error has the shape described",
        "under [errors](errors.md). A running server gives the full schema at `/v1/openapi.json`.\n",
        '```json\n{"ok": true, "data": "…"}\n```\n',
        "What changes something, and what jobs print, needs the header `Authorization: Bearer TOKEN`, with",
        "the token that the server keeps in the file `token` of its data folder.\n",
        "| Method | Path | Query | Token |\n|---|---|---|---|",
    ]
    for route in router.routes:
        assert isinstance(route, APIRoute)
        query = ", ".join(f"`{param.name}` ({param.default})" for param in route.dependant.query_params)
        token = "yes" if route.dependencies else "no"
        lines.append(row(", ".join(sorted(route.methods or ())), f"`{route.path}`", query, token))
    lines += ["\n## Submit a job\n", "The body of `POST /v1/jobs`:\n", "| Field | Default |\n|---|---|"]
    for name, field in Submission.model_fields.items():
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        lines.append(row(f"`{name}`", default))
    return "\n".join(lines) + "\n"
