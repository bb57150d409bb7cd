"""Advice, judged: each claim on a config, a pasted answer in four languages, and against published pairs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.accuracy.runs import Row, Skipped, understand
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.diagnose.claims.judge import CLAIMS, Case, effect, judge_all
from brimful.diagnose.claims.paste import Line, judge_paste
from brimful.errors import BadInput
from brimful.language import language
from brimful.specs.gpu import find_gpu
from brimful.units import GIB, MIB
from tests.fit.builders import a_model, a_training
from tests.fit.test_direction import NOISE_FRAC, pairs

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CONFIG = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
CARD = find_gpu("rtx-4070")


def reread(words: Sequence[str] = ()) -> Reading:
    return read(CONFIG, overrides=words)


def a_case(words: Sequence[str] = (), gpu: str = "rtx-4070", other_mib: int = 2100) -> Case:
    return Case(reread(words), find_gpu(gpu), other_mib * MIB, correction=None)


VERDICTS = {
    "fp16": "false",
    "compile_off": "false",
    "smaller_batch": "partly",
    "memory_is_work": "false",
    "smaller_model": "false",
    "expandable_segments": "false",
    "checkpointing": "true",
    "adam8bit": "true",
    "pad_vocabulary": "false",
}


def test_every_claim_is_judged_with_a_reason_and_what_was_published() -> None:
    judged = {one.claim: one for one in judge_all(a_case())}

    assert {name: one.verdict for name, one in judged.items()} == VERDICTS
    assert all(one.why and one.published for one in judged.values())


def test_a_verdict_depends_on_the_config_not_on_the_claim() -> None:
    assert CLAIMS["fp16"](a_case(gpu="v100-sxm-32gb")).verdict == "partly"  # no bf16 hardware: it saves time
    assert CLAIMS["pad_vocabulary"](a_case(["vocab_size=50257"])).verdict == "partly"
    assert CLAIMS["expandable_segments"](a_case(other_mib=1000)).verdict == "partly"  # it fits, or nearly
    assert CLAIMS["adam8bit"](a_case(["optimizer=sgd"])).verdict == "cannot tell"
    small = a_case(["batch_size=1", "block_size=64", "vocab_size=64"])
    assert CLAIMS["checkpointing"](small).verdict == "false"  # there is nothing to save


def test_a_format_the_card_lacks_is_refused_not_judged_at_another_rate() -> None:
    with pytest.raises(BadInput) as refused:
        judge_all(a_case(["precision=fp8"], gpu="a100-sxm-80gb"))
    assert refused.value.said.as_dict()["code"] == "fit.no_fp8"
    assert judge_all(a_case(["precision=fp8"], gpu="rtx-4070"))


def test_a_saving_too_small_to_be_sure_of_does_not_make_a_claim_true() -> None:
    words = ["framework=litgpt", "precision=bf16", "gpus=4", "sharding=zero3", "batch_size=4", "seq_len=1024"]
    judged = CLAIMS["compile_off"](
        Case(read(None, model="pythia-410m", overrides=words), CARD, correction=None)
    )
    assert judged.effect is not None

    assert 0 < judged.effect.saves_frac < 0.03
    assert judged.verdict == "partly"


def test_fp16_saves_nothing_over_bf16_on_every_kind_of_run() -> None:
    for words in ([], ["compile=False"], ["checkpointing=full"], ["optimizer=adam8bit"]):
        done = CLAIMS["fp16"](a_case(words)).effect
        assert done is not None
        assert done.saves_bytes == 0


@pytest.mark.parametrize("claimed", [0.10, 0.25])
def test_a_smaller_batch_saves_less_than_its_share(claimed: float) -> None:
    done = CLAIMS["smaller_batch"](replace(a_case(), claimed_frac=claimed), batch_size=12, accumulation=40)
    assert done.effect is not None

    assert 0 < done.effect.saves_frac < 0.25
    assert done.verdict == "partly"


# -- the pasted answer -------------------------------------------------------------------------------------

PASTES = {
    "en": """Your card is simply full. Change four lines:
batch_size = 12
gradient_accumulation_steps = 40
compile = False  # torch.compile needs more memory than eager
dtype = 'float16'  # uses 10-15% less memory than bfloat16
90% of the memory is in use, so the GPU is busy.
With these settings it never fails.""",
    "fr": """Votre carte est tout simplement saturée. Changez quatre lignes :
batch_size = 12
gradient_accumulation_steps = 40
compile = False  # torch.compile prend plus de mémoire que le mode eager
dtype = 'float16'  # 10 à 15 % de mémoire en moins que bfloat16
La mémoire est utilisée à 90 %, donc le GPU est bien occupé.
Avec ces réglages, ça ne plante jamais.""",
    "es": """Tu tarjeta está sencillamente al límite. Cambia cuatro líneas:
batch_size = 12
gradient_accumulation_steps = 40
compile = False  # torch.compile ocupa más memoria que el modo eager
dtype = 'float16'  # gasta un 10-15 % menos de memoria que bfloat16
La memoria está al 90 %, así que la GPU está trabajando a tope.
Con estos ajustes nunca falla.""",
    "de": """Deine Karte ist einfach voll. Ändere vier Zeilen:
batch_size = 12
gradient_accumulation_steps = 40
compile = False  # torch.compile braucht mehr Speicher als eager
dtype = 'float16'  # braucht 10 bis 15 % weniger Speicher als bfloat16
90 % des Speichers sind belegt, die GPU ist also beschäftigt.
Mit diesen Einstellungen stürzt es nie ab.""",
}
PROSE = {
    "en": "Use a batch of 12 x 40, turn compile off, and use fp16: guaranteed.",
    "fr": "Prenez un batch de 12 x 40, désactivez compile et passez en fp16 : c'est garanti.",
    "es": "Usa un batch de 12 x 40, desactiva compile y pasa a fp16: garantizado.",
    "de": "Nimm einen Batch von 12 x 40, schalte compile aus und nimm fp16: garantiert.",
}
MORE = {
    "expandable_segments": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "checkpointing": "gradient checkpointing",
    "adam8bit": "bnb.optim.AdamW8bit",
    "pad_vocabulary": "vocab_size 50257 -> 50304",
}
SMALLER = {
    "en": "Take a smaller model and a bigger batch.",
    "fr": "Prenez un modèle plus petit et un batch plus grand.",
    "es": "Usa un modelo más pequeño y un batch más grande.",
    "de": "Nimm ein kleineres Modell und einen größeren Batch.",
}


# The same advice in other words, and sentences that only look like it.
OTHERS: dict[str, dict[str, str]] = {
    "batch": {
        "en": "Reduce the batch size from 16 to 12.",
        "fr": "Réduisez le batch de 16 à 12.",
        "es": "Reduce el batch de 16 a 12.",
        "de": "Verkleinere den Batch von 16 auf 12.",
    },
    "compile": {
        "en": "Do not compile the model: compiled code takes more memory.",
        "fr": "Ne compilez pas le modèle : le code compilé prend plus de mémoire.",
        "es": "No compiles el modelo: el código compilado ocupa más memoria.",
        "de": "Kompiliere das Modell nicht: Kompilierter Code braucht mehr Speicher.",
    },
    "half": {
        "en": "Switch to half precision, it saves memory.",
        "fr": "Passez en demi-précision, ça économise de la mémoire.",
        "es": "Pasa a media precisión, ahorra memoria.",
        "de": "Wechsle zu halber Genauigkeit, das spart Speicher.",
    },
    "adam": {
        "en": "An 8-bit optimizer saves memory.",
        "fr": "Un optimiseur 8 bits économise de la mémoire.",
        "es": "Un optimizador de 8 bits ahorra memoria.",
        "de": "Ein 8-Bit-Optimizer spart Speicher.",
    },
    "never": {
        "en": "You will never see a crash again.",
        "fr": "Vous ne verrez plus jamais de crash.",
        "es": "Nunca más verás un error.",
        "de": "Es wird nie wieder abstürzen.",
    },
    "nothing": {
        "en": "Always use the newest driver; 90% of the memory is in use.",
        "fr": "Utilisez toujours le pilote le plus récent ; la mémoire est utilisée à 90 %.",
        "es": "Usa siempre el controlador más reciente; la memoria está ocupada al 90 %.",
        "de": "Nimm immer den neuesten Treiber; 90 % des Speichers sind belegt.",
    },
}


def verdicts(lines: tuple[Line, ...]) -> list[Any]:
    return [(line.number, one.claim, one.verdict, one.effect) for line in lines for one in line.judged]


def test_the_forum_answer_is_judged_line_by_line() -> None:
    judged = [
        (n, claim, verdict) for n, claim, verdict, _ in verdicts(judge_paste(PASTES["en"], a_case(), reread))
    ]

    assert judged == [
        (2, "smaller_batch", "partly"),
        (3, "same_batch", "false"),
        (4, "compile_off", "false"),
        (5, "fp16", "false"),
        (6, "memory_is_work", "false"),
        (7, "never_fails", "false"),
    ]


@pytest.mark.parametrize("code", ["fr", "es", "de"])
def test_the_judgement_does_not_depend_on_the_language_of_the_paste(code: str) -> None:
    for pastes in (PASTES, PROSE, SMALLER):
        english, other = (verdicts(judge_paste(pastes[c], a_case(), reread)) for c in ("en", code))
        assert english
        assert english == other


@pytest.mark.parametrize("code", ["fr", "es", "de"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_words_for_the_same_advice_are_judged_alike(name: str, code: str) -> None:
    english, other = (verdicts(judge_paste(OTHERS[name][c], a_case(), reread)) for c in ("en", code))

    assert bool(english) == (name != "nothing")
    assert english == other


PARAPHRASES = tomllib.loads((Path(__file__).parent / "paraphrases.toml").read_text(encoding="utf-8"))
SAYS = {"batch": "smaller_batch", "compile": "compile_off", "fp16": "fp16", "never": "never_fails"}


@pytest.mark.parametrize("code", PARAPHRASES)
def test_a_claim_is_found_however_it_is_said_and_nothing_else(code: str) -> None:
    case = a_case()
    for kind, lines in PARAPHRASES[code].items():
        found = {line: claims_found(line, case) for line in lines}
        assert found == {line: [SAYS[kind]] if kind in SAYS else [] for line in lines}


def claims_found(text: str, case: Case) -> list[str]:
    return [one.claim for line in judge_paste(text, case, reread) for one in line.judged]


def test_there_are_thirty_ways_to_say_it_in_each_language() -> None:
    for code in ("en", "fr", "es", "de"):
        assert sum(len(PARAPHRASES[code][kind]) for kind in SAYS) >= 30


@pytest.mark.parametrize("code", ["en", "fr", "es", "de"])
def test_the_forum_answer_in_any_words_is_judged_as_in_the_first(code: str) -> None:
    """Twelve pastes of a language, each in other words: the verdicts are those of plain lines of a config."""
    case, by_kind = a_case(), PARAPHRASES[code]
    accumulation = "gradient_accumulation_steps = 40"
    for n in range(12):
        batch, compiled, half, never = (by_kind[kind][n % len(by_kind[kind])] for kind in SAYS)
        lines = judge_paste("\n".join([batch, accumulation, compiled, half, never]), case, reread)
        judged = [(one.claim, one.verdict) for line in lines for one in line.judged]
        assert judged == [
            ("smaller_batch", "partly"),
            ("same_batch", "false"),
            ("compile_off", "false"),
            ("fp16", "false"),
            ("never_fails", "false"),
        ], (batch, compiled, half, never)


@pytest.mark.parametrize("claim", MORE)
def test_the_other_claims_are_found_by_their_names(claim: str) -> None:
    assert [one.claim for line in judge_paste(MORE[claim], a_case(), reread) for one in line.judged] == [
        claim
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Gradient checkpointing costs no time.",
        "gradient checkpointing, at no cost",
        "le gradient checkpointing ne ralentit pas",
        "Gradient Checkpointing kostet keine Zeit",
        "gradient checkpointing, sin coste alguno",
        "8-bit Adam saves no memory",
        "8-Bit-Adam spart keinen Speicher",
        "expandable_segments won't help",
        "The memory is full but the card is not busy",
        "Der Speicher ist voll, aber die Karte ist nicht ausgelastet",
    ],
)
def test_a_claim_turned_round_is_left_alone(text: str) -> None:
    assert not judge_paste(text, a_case(), reread)[0].judged


@pytest.mark.parametrize(
    "text",
    [
        "Use 8-bit Adam, it saves half the memory",
        "Adam 8 bits : deux fois moins de mémoire",
        "Nimm Adam in 8 Bit, das spart die Hälfte des Speichers.",
        "Adam de 8 bits gasta la mitad de memoria",
        "8-bit Adam saves 50 %",
    ],
)
def test_half_is_a_share_too(text: str) -> None:
    (judged,) = judge_paste(text, a_case(), reread)[0].judged

    assert (judged.claim, judged.verdict) == ("adam8bit", "partly")


def test_a_full_stop_ends_a_sentence_not_a_number() -> None:
    text = "Set batch_size = 12 and gradient_accumulation_steps = 40.\nThen it never fails."
    verdicts = [one.verdict for line in judge_paste(text, a_case(), reread) for one in line.judged]

    assert verdicts == ["partly", "partly"]


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("Stell torch.compile ab, dann braucht es weniger Speicher.", "compile_off"),
        ("Der Speicher ist voll, also ist die Karte ausgelastet.", "memory_is_work"),
        ("la mémoire est à 95 %, donc la carte bosse", "memory_is_work"),
    ],
)
def test_words_people_use_for_it(text: str, claim: str) -> None:
    assert [one.claim for one in judge_paste(text, a_case(), reread)[0].judged] == [claim]


def test_never_fails_is_believed_as_far_as_the_prediction_goes() -> None:
    (line,) = judge_paste("batch_size = 4, and it never fails", a_case(other_mib=0), reread)
    by_claim = {one.claim: one for one in line.judged}

    assert by_claim["never_fails"].verdict == "partly"


@pytest.mark.parametrize("text", ["", "Good morning", "I have 12 apples", "batch_size is a setting", "50 %"])
def test_what_claims_nothing_is_not_judged(text: str) -> None:
    assert not verdicts(judge_paste(text, a_case(), reread))


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_paste_is_answered(text: str) -> None:
    for line in judge_paste(f"batch_size = {text}\n{text}", a_case(), reread):
        line.as_dict(language("en"))


def test_settings_that_cannot_be_are_not_judged() -> None:
    lines = judge_paste("dtype = 'int3' and it never fails\nbatch_size = 0", a_case(), reread)

    assert {one.verdict for line in lines for one in line.judged} <= {"cannot tell", "false", "partly"}


# -- as published ------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "compile": ("compile_off", {}),
    "8-bit Adam": ("adam8bit", {}),
    "checkpointing": ("checkpointing", {}),
    "batch": ("smaller_batch", {}),
}


def test_directions_agree_with_every_published_pair(shared_data: Path) -> None:
    """The saving a claim predicts on the config of the larger run has the sign that was measured."""
    seen: dict[str, int] = {}
    for name, before, after in pairs(shared_data):
        measured = float(after["peak_mem_gib"]) - float(before["peak_mem_gib"])
        if name not in CHANGES or abs(measured) <= NOISE_FRAC * float(before["peak_mem_gib"]):
            continue
        try:
            saved = _claimed_saving(name, before, after)
        except Skipped:
            continue
        seen[name] = seen.get(name, 0) + 1
        assert saved * measured < 0, (
            f"{name}: {before['id']} to {after['id']} {measured:+.2f}, {saved / GIB:+.2f}"
        )

    assert seen.keys() >= {"compile", "8-bit Adam", "batch"}, seen
    assert sum(seen.values()) >= 18, seen


def test_compiling_makes_every_published_run_faster_as_claimed(shared_data: Path) -> None:
    seen = 0
    for name, before, after in pairs(shared_data):
        rates = [float(row["tokens_per_s_per_gpu"] or 0) for row in (before, after)]
        if name == "compile" and all(rates):
            run = understand(before)
            case = Case(
                Reading(model=run.model, training=run.training, assumed=(), warnings=()),
                run.gpu,
                correction=None,
            )
            done = CLAIMS["compile_off"](case).effect
            assert done is not None
            faster_on = rates[1] > rates[0] if before["compile"] == "no" else rates[0] > rates[1]
            assert (done.step_time_factor > 1) == faster_on
            seen += 1
    assert seen >= 2


def _claimed_saving(name: str, before: Row, after: Row) -> float:
    """What `after` saves over `before` by the claim's own effect on the config of `before`."""
    run, other = understand(before), understand(after)
    case = Case(
        Reading(model=run.model, training=run.training, assumed=(), warnings=()), run.gpu, correction=None
    )
    claim, words = CHANGES[name]
    if name == "batch":
        words = {"batch_size": other.training.batch_size}
    done = CLAIMS[claim](case, **words).effect
    assert done is not None
    backwards = {
        "compile": before["compile"] == "no",
        "8-bit Adam": "8bit" in before["optimizer"].lower(),
        "checkpointing": run.training.checkpointing != "none",
    }
    return -done.saves_bytes if backwards.get(name) else done.saves_bytes


def test_an_effect_is_of_the_same_tokens() -> None:
    case = Case(
        Reading(model=a_model(), training=a_training(), assumed=(), warnings=()), CARD, correction=None
    )
    twice = replace(case.training, accumulation=80)

    assert effect(case.now(), case.of(twice), tokens_factor=2.0).step_time_factor == pytest.approx(
        1, rel=0.01
    )
