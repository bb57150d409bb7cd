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
from brimful.diagnose.claims.find import _FROM_TO, find_claims
from brimful.diagnose.claims.judge import CLAIMS, Case, effect, judge_all
from brimful.diagnose.claims.paste import Judged, judge_paste
from brimful.diagnose.claims.reading import MAX_STATEMENT, folded, language_of, repaired, statements
from brimful.diagnose.claims.settings import never_fails, settings_in
from brimful.diagnose.claims.words import QUANTITIES, products
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
    assert CLAIMS["adam8bit"](a_case(["optimizer=sgd"])).verdict == "cannot_tell"
    small = a_case(["batch_size=1", "block_size=64", "vocab_size=64"])
    assert CLAIMS["checkpointing"](small).verdict == "false"  # there is nothing to save


def test_a_format_the_card_lacks_is_refused_not_judged_at_another_rate() -> None:
    with pytest.raises(BadInput) as refused:
        judge_all(a_case(["precision=fp8"], gpu="a100-sxm-80gb"))
    assert refused.value.said.as_dict()["code"] == "fit.no_fp8"
    assert judge_all(a_case(["precision=fp8"], gpu="rtx-4070"))


def test_a_saving_too_small_to_be_sure_of_does_not_make_a_claim_true() -> None:
    words = ["framework=litgpt", "precision=bf16", "gpus=4", "sharding=none", "batch_size=2", "seq_len=1024"]
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


def verdicts(found: Judged) -> list[Any]:
    return [(one.claim, one.verdict, one.denied) for one in found.claims]


def judged(text: str, case: Case | None = None) -> list[tuple[str, str]]:
    found = judge_paste(text, case or a_case(), reread)
    return [(one.claim, one.verdict) for one in found.claims]


def test_the_forum_answer_is_judged_claim_by_claim_worst_first() -> None:
    assert judged(PASTES["en"]) == [
        ("compile_off", "false"),
        ("fp16", "false"),
        ("memory_is_work", "false"),
        ("never_fails", "false"),
    ]
    found = judge_paste(PASTES["en"], a_case(), reread)
    assert len(found.summary) == 3
    assert found.settings == {
        "batch_size": "12",
        "gradient_accumulation_steps": "40",
        "compile": "False",
        "dtype": "float16",
    }


@pytest.mark.parametrize("code", ["fr", "es", "de"])
def test_the_judgement_does_not_depend_on_the_language_of_the_paste(code: str) -> None:
    for pastes in (PASTES, PROSE):
        english, other = (judge_paste(pastes[c], a_case(), reread) for c in ("en", code))
        assert verdicts(english)
        assert verdicts(english) == verdicts(other)
        assert english.settings == other.settings


@pytest.mark.parametrize("code", ["fr", "es", "de"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_words_for_the_same_advice_are_read_alike(name: str, code: str) -> None:
    english, other = (judge_paste(OTHERS[name][c], a_case(), reread) for c in ("en", code))

    assert bool(english.claims or english.settings) == (name != "nothing")
    assert verdicts(english) == verdicts(other)
    assert english.settings == other.settings


PARAPHRASES = tomllib.loads((Path(__file__).parent / "paraphrases.toml").read_text(encoding="utf-8"))
SAYS = {"batch": ("batch_size", "12"), "compile": ("compile", "False"), "fp16": ("dtype", "float16")}


@pytest.mark.parametrize("code", PARAPHRASES)
def test_a_setting_or_a_promise_is_found_however_it_is_said_and_nothing_else(code: str) -> None:
    for kind, lines in PARAPHRASES[code].items():
        for line in lines:
            found = settings_in(line)
            assert never_fails(folded(line)) == (kind == "never"), line
            others = {key for key, _ in SAYS.values()} - {SAYS.get(kind, ("", ""))[0]}
            assert kind not in SAYS or found[SAYS[kind][0]] in {SAYS[kind][1], "true", "True"}, line
            assert kind == "nothing" or not others & found.keys(), line
            assert kind != "nothing" or found.get("compile") != "False", line


PHRASES = tomllib.loads((Path(__file__).parent / "phrases.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("claim", PHRASES)
def test_a_claim_is_found_and_judged_in_the_words_of_four_languages(claim: str) -> None:
    """Each phrase makes this one claim and no other, on a GPT-2 of 124 million that does not fit its 4070."""
    case = a_case(["n_embd=768", "batch_size=12", "gradient_accumulation_steps=40", "compile=False"])

    def words(more: Sequence[str]) -> Reading:
        gpt2 = ["n_embd=768", "batch_size=12", "gradient_accumulation_steps=40", "compile=False"]
        return reread([*gpt2, *more])

    for expected, phrases in PHRASES[claim].items():
        for phrase in phrases:
            found = [(one.claim, one.verdict) for one in judge_paste(phrase, case, words).claims]
            assert found == ([(claim, expected)] if expected != "none" else []), phrase


def test_a_claim_said_twice_is_one_and_the_one_with_a_figure_counts() -> None:
    text = "Use fp16 instead of bf16, it is lighter.\nYou save 10-15% VRAM."
    (claim,) = find_claims(statements(text))

    assert claim.share == (0.10, 0.15)
    assert len(claim.quotes) == 2


@pytest.mark.parametrize("codec", ["cp1252", "mac_roman"])
def test_badly_encoded_text_is_repaired_and_any_other_left_alone(codec: str) -> None:
    text = "La mémoire est déjà pleine – économisez 25 % à coup sûr. Größe, señal, ¿qué?"
    misread = text.encode().decode(codec, errors="ignore")

    assert repaired(text) == text
    assert repaired(misread).count("é") == text.count("é")
    assert "Größe" in repaired(misread)


def test_front_matter_fences_quotes_and_logs_claim_nothing() -> None:
    text = """---
title: fp16 saves memory
---
> fp16 saves 20 % of memory
```
CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of 11.69 GiB
```
Thanks!"""
    assert not judged(text)


@pytest.mark.parametrize("code", ["en", "fr", "es", "de"])
def test_the_language_of_a_text_is_told_by_its_commonest_words(code: str) -> None:
    assert language_of(PASTES[code]) == code


def test_without_a_config_what_depends_on_it_cannot_be_told() -> None:
    text = "It fits on a 12 GB card. fp16 saves memory over bf16."
    found = {one.claim: one.verdict for one in judge_paste(text, None, None).claims}

    assert found == {"fp16": "false", "fits_card": "cannot_tell"}


def test_never_fails_is_believed_as_far_as_the_prediction_goes() -> None:
    found = dict(judged("batch_size = 4, and it never fails", a_case(other_mib=0)))

    assert found["never_fails"] == "partly"


@pytest.mark.parametrize("text", ["", "Good morning", "I have 12 apples", "batch_size is a setting", "50 %"])
def test_what_claims_nothing_is_not_judged(text: str) -> None:
    assert not judged(text)


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_paste_is_answered(text: str) -> None:
    for one in judge_paste(f"batch_size = {text}\n{text}", a_case(), reread).claims:
        one.as_dict(language("en"))


@pytest.mark.parametrize("run", ["7" * 400, "1," * 400, "100 " * 400, "1." * 400, "x" * 400])
def test_no_number_is_longer_than_a_person_writes(run: str) -> None:
    """What a pattern can read at every place of a line, it reads in the square of its length."""
    ends = ("1 GB", "100 GB", "1GiB", "1 %", "1 to 2 GB", "1x", "1 x 2", "1B", "1 bytes", "_", "=")
    text = run + run.join(ends)
    for pattern in (*QUANTITIES, _FROM_TO):
        assert all(len(match[0]) < 200 for match in pattern.finditer(text)), pattern.pattern


def test_a_long_line_is_read_in_pieces_and_nothing_of_it_is_lost() -> None:
    text = "fp16 saves memory over bf16, " * 1000
    pieces = [one.text for one in statements(text)]

    assert " ".join(pieces) == text.strip()
    assert max(map(len, pieces)) <= MAX_STATEMENT
    assert judged(text) == [("fp16", "false")]
    assert max(len(one.text) for one in statements('{"a":' * 10_000)) == MAX_STATEMENT


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadInput) as refused:
        judge_paste("7" * 100_001, None, None)
    assert refused.value.said.as_dict()["code"] == "claims.too_many_characters"
    assert not judge_paste("7" * 100_000, None, None).claims


def test_a_list_is_no_factor_of_a_product() -> None:
    assert products("keep the batch: 1,2,3 x 4 or 6 x 80") == [[6, 80]]
    assert not judged("keep the batch at 1,2,3 x 4")


def test_settings_that_cannot_be_are_not_judged() -> None:
    found = judged("dtype = 'int3' and it never fails\nbatch_size = 0")

    assert {verdict for _, verdict in found} <= {"cannot_tell", "false", "partly"}


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
