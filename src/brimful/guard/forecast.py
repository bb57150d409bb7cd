"""The prediction for a command before it starts, and the room there is for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.configs.arguments import MODEL_WORDS
from brimful.configs.nanogpt import read_globals
from brimful.configs.reading import Reading
from brimful.errors import BadInput, BrimfulError, NotFound, Said
from brimful.fit.advice.advise import Predict
from brimful.fit.correction import Correction
from brimful.fit.fit import predictor
from brimful.guard.command import NANOGPT_STYLE, Command, spoken
from brimful.guard.replan import bounded
from brimful.language import Sentence, Several, Size, say
from brimful.meter.nvml import problem_said
from brimful.meter.peak import find_card
from brimful.meter.samples import GpuSample
from brimful.specs.desktop import Others
from brimful.specs.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A card, and what other programs hold of it."""

    gpu: Gpu
    others: Others
    by_driver: bool  # whether card and others come from the driver, or from the user

    @property
    def usable_bytes(self) -> int:
        return max(0, self.gpu.memory_bytes - self.others.bytes)

    def said(self) -> Sentence:
        """How card and others are known."""
        source = say("guard.by_driver") if self.by_driver else say("guard.as_given")
        others = Size(self.others.bytes)
        if self.others.basis == "assumed":
            readings = self.others.readings
            return say("guard.others_assumed", source=source, others=others, readings=readings)
        return say("guard.others_held", source=source, others=others) if self.others.bytes else source


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The settings of the command as Fit reads them, and its estimates for this card."""

    reading: Reading
    room: Room
    predict: Predict  # with the room's `usable_bytes`

    def said(self) -> Sentence:
        """One sentence with the numbers: will it fit?"""
        now = self.predict(self.reading.training)
        device = now.memory.device_bytes
        verdict = say(f"guard.verdict_{now.verdict}")
        if not now.fits:
            verdict = say("guard.short_by", verdict=verdict, short=Size(now.short_bytes))
        return say(
            "guard.predicted",
            likely=Size(device.likely),
            low=Size(device.low),
            high=Size(device.high),
            usable=Size(now.usable_bytes),
            gpu=self.room.gpu.title,
            room=self.room.said(),
            verdict=verdict,
        )


def room_by_driver(cards: Sequence[GpuSample], *, visible: str | None, gpus: int) -> Room:
    """What is free on the cards the command will see; with several, the one with the least.

    `visible` is CUDA_VISIBLE_DEVICES: numbers or ids, in the order the command counts them.
    """
    answering = [card for card in cards if not card.problem and card.memory_used_bytes is not None]
    if visible is not None:
        named = [word.strip() for word in visible.split(",") if word.strip()]
        answering = [card for word in named for card in answering if _is_called(card, word)]
    if not answering:
        found = say("guard.no_card") if visible is None else say("guard.no_visible_card", visible=visible)
        problems = tuple(problem_said(card.problem) for card in cards if card.problem)
        if problems:
            found = say("guard.no_card_because", found=found, problems=Several(problems, between="; "))
        raise NotFound(found, hint=say("guard.name_card"), code="no_card")
    fullest = max(answering[:gpus], key=lambda card: card.memory_used_bytes or 0)
    return Room(
        gpu=find_card(fullest.name, fullest.memory_total_bytes),
        others=Others(bytes=fullest.memory_used_bytes or 0, basis="given"),
        by_driver=True,
    )


def _is_called(card: GpuSample, word: str) -> bool:
    return word == str(card.index) if word.isdigit() else bool(card.uuid) and card.uuid.startswith(word)


def read_settings(command: Command, *, config: str | None, model: str | None, sets: Sequence[str]) -> Reading:
    """Model and training of the command: from its own words, or from what the user specifies in addition."""
    from brimful.configs.read import read

    own = spoken(command.words[command.begins :])
    more = [*sets, *([f"gpus={command.gpus}"] if command.gpus > 1 else [])]
    if command.style == NANOGPT_STYLE and config is None and model is None:
        file = command.config or command.script
        assert file is not None
        return read_globals(command.globals, name=file.stem, overrides=more)
    named = model or next((own[word] for word in MODEL_WORDS if isinstance(own.get(word), str)), None)
    if config is None and named is not None and command.keys:
        from brimful.configs.trainer import read_words

        return read_words(named, {**own, **command.says}, more)
    if config is None and model is None:
        raise BadInput(say("guard.no_model"))
    return read(config, model=None if config else model, overrides=more)


def forecast(reading: Reading, room: Room, correction: Correction | None) -> Forecast:
    # Memory held by others is subtracted from the room: an out-of-memory message is about this process alone.
    predict = bounded(predictor(reading, room.gpu, 0, correction), room.usable_bytes)
    return Forecast(reading=reading, room=room, predict=predict)


def try_settings(
    command: Command, *, config: str | None, model: str | None, sets: Sequence[str]
) -> tuple[Reading | None, Said | None]:
    """The reading, or why there is none. What the user explicitly asked for must be readable."""
    try:
        return read_settings(command, config=config, model=model, sets=sets), None
    except BrimfulError as error:
        if config is not None or model is not None or sets:
            raise
        return None, error.said
