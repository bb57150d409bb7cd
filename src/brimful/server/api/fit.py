"""The route of Fit: what a config needs, what a message means, whether advice is right. Stores nothing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from brimful.client.answers import FitAnswer
from brimful.server.api.answers import envelope
from brimful.server.api.errors import COMMON, ok
from brimful.server.api.gate import Gate, asker_of
from brimful.server.api.requests import Request, Text
from brimful.server.fitting import MOST_CARDS
from brimful.server.fitting.fitter import Fitter
from brimful.units import MIB

Name = Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f]*$")]


class FitRequest(Request):
    config: Annotated[
        Text, Field(description="a nanoGPT file, a config.json, training arguments, a recipe; never executed")
    ] = ""
    text: Annotated[
        str,
        Field(max_length=400_000, pattern=r"^[^\x00]*$", description="an error message, a log, or advice"),
    ] = ""
    model: Annotated[
        Name, Field(description="a model of `brimful fit --models`, beside or without a config")
    ] = ""
    gpus: Annotated[
        tuple[Name, ...], Field(max_length=MOST_CARDS, description="GPU names, as in `brimful fit --gpu`")
    ] = ()
    settings: Annotated[tuple[Name, ...], Field(max_length=50, description="KEY=VALUE, as `fit --set`")] = ()
    other_mib: Annotated[
        int | None, Field(ge=0, le=1_000_000, description="MiB that other programs hold on the card")
    ] = None


def ask(fitter: Fitter, asked: FitRequest, *, asker: str) -> FitAnswer:
    other = asked.other_mib
    rest = asked.model_dump(exclude={"other_mib"})
    return fitter.ask(asker=asker, **rest, other_bytes=None if other is None else other * MIB)


def add_fit_route(router: APIRouter, fitter: Fitter, gate: Gate, *, open_to_all: bool) -> None:
    who = [] if open_to_all else [gate.needs("viewer")]

    @router.post("/fit", response_model=envelope(FitAnswer), responses=COMMON, dependencies=who)
    def fit(request: HttpRequest, asked: FitRequest) -> Response:
        """Memory, speed and fixes for each GPU; or what a message means, or whether advice is right."""
        return ok(ask(fitter, asked, asker=asker_of(request)))
