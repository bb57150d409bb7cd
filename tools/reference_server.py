"""docs/reference/settings.md, api.md and metrics.md, from the server's own tables."""

from __future__ import annotations

from dataclasses import fields
from unittest.mock import MagicMock

from fastapi.routing import APIRoute

from brimful.client.settings import LIMITS, Settings
from brimful.language import say
from brimful.meter import exporter
from brimful.scheduler.policies import (
    DEFAULT,
    OPTIONS,
    POLICIES,
    about_option,
    about_policy,
    read_policy,
    values_of,
)
from brimful.server.api.requests import Submission
from brimful.server.api.router import make_router
from brimful.server.app import MAX_BODY_BYTES
from brimful.server.metrics import COUNTERS, GAUGES, REQUESTS, SECONDS
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
                f"`{each.default}`" if each.default not in ("", None) else "",
                f"{low_high[0]} to {low_high[1]}" if low_high else "",
                str(say(f"help.up_{each.name}")),
            )
        )
    default = read_policy(DEFAULT).rules
    lines += [
        "\n## Policies\n",
        "`brimful up --policy` and `brimful simulate --policy` take the same names and options: a name, or",
        "a name with options behind a question mark, as in `brim?preempt=none&move=0`. The default of both",
        f"is `{DEFAULT}`. `--grace-s` and `--min-run-s` win over the options of the same name.\n",
        "A server may be started again with another policy: jobs, leases and bills are in the event log,",
        "and the policy decides only what comes next.\n",
        "| Policy | Who goes first |\n|---|---|",
        *[row(f"`{name}`", str(about_policy(name))) for name in POLICIES],
        "\n| Option | Values | In the default policy | In others | Meaning |\n|---|---|---|---|---|",
    ]
    for name in OPTIONS:
        value = getattr(default, name)
        others: dict[str, list[str]] = {}
        for policy, rules in POLICIES.items():
            if getattr(rules, name) != value:
                others.setdefault(_shown(getattr(rules, name)), []).append(policy)
        said = "; ".join(f"{shown}: {', '.join(policies)}" for shown, policies in others.items())
        lines.append(row(f"`{name}`", str(values_of(name)), _shown(value), said, str(about_option(name))))
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    return f"`{int(value) if isinstance(value, bool) else value}`"


def api_page() -> str:
    # The routes are described, not called, so they need no service.
    router = make_router(MagicMock(), MagicMock(), MagicMock())
    lines = [
        NOTE,
        "# API\n",
        "JSON over HTTP. Every answer is one envelope, and an error has the shape described under",
        "[errors](errors.md). A running server gives the full schema at `/v1/openapi.json`.\n",
        '```json\n{"ok": true, "data": "…"}\n```\n',
        "The role says which token a route needs: the header `Authorization: Bearer TOKEN` with one of",
        "that role or a higher one ([tokens](../how-to/share-with-others.md)). What belongs to another",
        "tenant is not there: 404, in the same words as what never was.\n",
        "- Lists come in pages: `next_cursor` of one is `cursor` of the next, and `null` is the end.",
        "- `Idempotency-Key` with a submission: sent again with the same key, it gives the first one's job",
        "  back; with another request it is refused (409, `key_reused`) and says what differs. `env` and",
        "  `sites` are not compared. A key belongs to its token and is known while the job is in memory:",
        "  it is not over, or among the last 5,000 that are. The other verbs are idempotent by themselves.",
        "- The routes that end in `/stream` are server-sent events; `Last-Event-ID` goes on after a cut.",
        f"- A body is at most {MAX_BODY_BYTES:,} bytes.\n",
        "| Method | Path | Query | Role |\n|---|---|---|---|",
    ]
    for route in router.routes:
        assert isinstance(route, APIRoute)
        query = ", ".join(f"`{param.name}`" for param in route.dependant.query_params)
        lines.append(row(", ".join(sorted(route.methods or ())), f"`{route.path}`", query, role_of(route)))
    lines += ["\n## Submit a job\n", "The body of `POST /v1/jobs`:\n", "| Field | Default |\n|---|---|"]
    for name, field in Submission.model_fields.items():
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        lines.append(row(f"`{name}`", default))
    return "\n".join(lines) + "\n"


def role_of(route: APIRoute) -> str:
    found = [role for each in route.dependant.dependencies if (role := getattr(each.call, "role", None))]
    return found[0] if found else "none"


def metrics_page() -> str:
    lines = [
        NOTE,
        "# Metrics\n",
        "`GET /metrics` with an operator's token, in the text format of Prometheus, where counters end in",
        "`_total`.\n",
        "```yaml\nscrape_configs:\n  - job_name: brimful",
        "    authorization: {credentials_file: /etc/brimful/token}",
        "    static_configs: [{targets: ['127.0.0.1:8642']}]\n```\n",
        "| Name | Kind | Labels | Meaning |\n|---|---|---|---|",
    ]
    tables = (("gauge", GAUGES), ("counter", COUNTERS))
    for kind, table in tables:
        for name, (labels, words) in table.items():
            lines.append(row(f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), words))
    lines.append(row(f"`{REQUESTS[0]}`", "counter", "`method`, `route`, `status`", REQUESTS[1]))
    lines.append(row(f"`{SECONDS[0]}`", "histogram", "`route`", SECONDS[1]))
    lines += [
        "\n## Of one machine\n",
        "`brimful admin exporter` on each machine with GPUs; with `--dashboard` it prints a Grafana",
        "dashboard for these. What a card or a process does not say is left out, never zero.\n",
        "```yaml\nscrape_configs:\n  - job_name: brimful-gpus",
        "    static_configs: [{targets: ['127.0.0.1:9642']}]\n```\n",
        "| Name | Kind | Labels | Meaning |\n|---|---|---|---|",
    ]
    for kind, table in (("gauge", exporter.GAUGES), ("counter", exporter.COUNTERS)):
        for name, (labels, words) in table.items():
            lines.append(row(f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), words))
    return "\n".join(lines) + "\n"
