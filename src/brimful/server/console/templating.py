"""How templates become HTML. Knows no web framework: Fit is also rendered where there is no server."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from brimful.fleet.job import PRIORITIES
from brimful.language import Number, Percent, Seconds, Size, Usd, language, told, tongue, words
from brimful.language.printable import printable

LANGUAGE_NAMES = {"en": "English", "fr": "Français", "es": "Español", "de": "Deutsch"}


@cache
def make_templates() -> Environment:
    """Escaped, strict, and with one word for what nobody knows. Keeps what it has compiled."""
    templates = Environment(
        loader=PackageLoader("brimful.server.console"),
        autoescape=True,
        auto_reload=False,  # they are a package's own
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["t"] = words
    templates.globals["language"] = lambda: tongue().code
    templates.globals["languages"] = LANGUAGE_NAMES
    templates.filters.update(
        as_typed=lambda text: Markup("%s") % text,  # back into the box it came from, lines and all
        usd=lambda microusd: told(Usd(microusd)),
        duration=lambda seconds: told(Seconds(seconds)),
        size=lambda n: told(Size(n)),
        percent=lambda frac: told(Percent(frac)),
        number=lambda value, digits=0: told(Number(value, digits)),
        phase=lambda code: words(f"fleet.phase_{code}"),
        priority=lambda code: words(f"console.priority_{code}") if code in PRIORITIES else code,
        transfer=lambda code: words(f"console.transfer_{code}"),
        period=lambda code: words(f"console.period_{code}"),
        window_state=lambda code: words(f"console.state_{code}"),
        role=lambda code: words(f"console.role_{code}"),
        iso=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        utc=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC",
    )
    return templates


def warm_up() -> None:
    """Compile every page and read every language now, so that nobody's first page waits for it."""
    templates = make_templates()
    for name in templates.list_templates():
        templates.get_template(name)
    for code in LANGUAGE_NAMES:
        language(code)


def _written(value: object) -> object:
    """How a value is put on the page: None is "unknown", and what would not print is shown as a mark."""
    if value is None:
        return words("console.unknown")
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
