"""How templates become HTML. Independent of the web framework: Fit is also rendered without a server."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.nodes import Expr
from markupsafe import Markup, escape

from brimful.fleet.job import PRIORITIES
from brimful.language import Number, Percent, Seconds, Size, Usd, count, language, say, told, tongue, words
from brimful.language.printable import printable
from brimful.units import MICROUSD

LANGUAGE_NAMES = {"en": "English", "fr": "Français", "es": "Español", "de": "Deutsch"}


BAR = (
    '<svg class="bar" width="100%" height="4" aria-hidden="true" focusable="false">'
    '<rect class="bed" width="100%" height="4" rx="2"/>'
    '<rect class="water" width="{:.1f}%" height="4" rx="2"/></svg>'
)
CLOCK = '<time datetime="{0:%Y-%m-%dT%H:%M:%SZ}"{1}>{0:%H:%M:%S} UTC</time>'
IN_HTML = re.compile("[&<>'\"]").search
OF_DICTS = frozenset(dir(dict))
FIXED = re.compile(r"""\{\{ t\("([a-z_.]+)"\) \}\}""")


class FixedWords(Extension):
    """Words without values become text when a page is compiled: a page has hundreds of them."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:  # noqa: ARG002
        spoken = language(str(self.environment.globals["code"]))
        return FIXED.sub(lambda found: str(escape(spoken.text(say(found[1])))), source)


class OneCall(CodeGenerator):
    """Each value that a page shows takes one call, which also escapes it: a page has a thousand of them."""

    def _output_child_pre(self, node: Expr, frame: Frame, finalize: object) -> None:  # noqa: ARG002
        self.write("environment.written(")

    def _output_child_post(self, node: Expr, frame: Frame, finalize: object) -> None:  # noqa: ARG002
        self.write(")")


class Templates(Environment):
    """Looks up fields of answers, which are plain dicts, without trying attributes that dicts do not have."""

    code_generator_class = OneCall

    @staticmethod
    def written(value: object) -> str:
        """How a value is shown, escaped: None is "unknown", and unprintable characters become a mark."""
        kind = type(value)
        if kind is int:
            return str(value)
        if kind is Markup:
            return cast("Markup", value)
        if isinstance(value, str):
            text = printable(value)
            return escape(text) if IN_HTML(text) else text
        return escape(words("console.unknown") if value is None else value)

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401
        # What is an attribute of every dict stays one, as in Jinja: a site may be called "items".
        if type(obj) is dict and attribute in obj and attribute not in OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)


def templates_here() -> Environment:
    """The templates of the current language."""
    return make_templates(tongue().code)


@cache
def make_templates(code: str) -> Environment:
    """One language, escaped, strict, with one word for unknown values. Caches what it has compiled."""
    templates = Templates(
        extensions=[FixedWords],
        loader=PackageLoader("brimful.server.console"),
        autoescape=True,
        auto_reload=False,  # part of the package
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["t"] = words
    templates.globals.update(code=code, language=lambda: code, bar=_bar, clock=_clock)
    templates.globals["languages"] = LANGUAGE_NAMES
    templates.filters.update(
        as_typed=lambda text: Markup("%s") % text,  # back into the box it came from, newlines included
        usd=lambda microusd: told(Usd(microusd)),
        typed_usd=lambda microusd: f"{microusd / MICROUSD:.6f}".rstrip("0").rstrip("."),  # into a field
        duration=lambda seconds: told(Seconds(seconds)),
        size=lambda n: told(Size(n)),
        percent=lambda frac: told(Percent(frac)),
        number=lambda value, digits=0: told(Number(value, digits)),
        as_shown=lambda value, how: templates.filters[how](value),
        phase=lambda code: words(f"fleet.phase_{code}"),
        priority=lambda code: words(f"console.priority_{code}") if code in PRIORITIES else code,
        transfer=lambda code: words(f"console.transfer_{code}"),
        gpus=lambda n: told(count("gpu", n)),
        period=lambda code: words(f"console.period_{code}"),
        machine_state=lambda code: words(f"money.machine_{code}"),
        window_state=lambda code: words(f"console.state_{code}"),
        within=lambda code: words(f"console.within_{code}"),
        role=lambda code: words(f"console.role_{code}"),
        iso=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        utc=lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC",
    )
    return templates


def warm_up() -> None:
    """Compile every page and read every language now, so that nobody's first page is slow."""
    for code in LANGUAGE_NAMES:
        templates = make_templates(code)
        for name in templates.list_templates():
            templates.get_template(name)


def _bar(frac: float) -> Markup:
    return Markup(BAR.format(100 * frac))  # noqa: S704 - a number


def _clock(at_s: int, exact: bool = False) -> Markup:
    """UTC without a script; with one, the reader's time zone, to the minute or `exact` to the second."""
    exactly = " data-exact" if exact else ""
    return Markup(CLOCK.format(datetime.fromtimestamp(at_s, UTC), exactly))  # noqa: S704 - a time
