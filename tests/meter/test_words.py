"""What a Meter and a guard say, in each language once; other tests ask for codes and numbers."""

from __future__ import annotations

import pytest

from brimful.language import language, say
from brimful.meter.nvml import problem_said
from brimful.meter.samples import RunSample, StepSample
from brimful.meter.sinks import step_said

RUN = RunSample(at_s=0.0, pid=1, host="h", peak_flops_per_s=58.3e12, peak_format="bf16")
STEP = StepSample(
    at_s=1.0, step=1200, step_s=0.4, tokens_per_s=39_800.0, mfu=0.412, data_s=0.1, forward_s=0.3,
    malloc_retries=1,
)  # fmt: skip
SAID = {
    "en": "step 1200  400 ms  39,800 tokens/s  MFU 41.2 % of 58.3 TFLOPS bf16  data 25 % · forward 75 % · "
    "backward 0 % · optimizer 0 % · other 0 %  1 cudaMalloc retry",
    "fr": "étape 1200  400 ms  39\u202f800 tokens/s  MFU 41,2 % de 58,3 TFLOPS bf16  données 25 % · "
    "forward 75 % · backward 0 % · optimiseur 0 % · autre 0 %  1 nouvel essai de cudaMalloc",
    "es": "paso 1200  400 ms  39.800 tokens/s  MFU 41,2 % de 58,3 TFLOPS bf16  datos 25 % · forward 75 % · "
    "backward 0 % · optimizador 0 % · otros 0 %  1 reintento de cudaMalloc",
    "de": "Schritt 1200  400 ms  39.800 Tokens/s  MFU 41,2 % von 58,3 TFLOPS bf16  Daten 25 % · "
    "Forward 75 % · Backward 0 % · Optimizer 0 % · Sonstiges 0 %  1 neuer cudaMalloc-Versuch",
}  # fmt: skip


@pytest.mark.parametrize("code", SAID)
def test_a_step_in_each_language(code: str) -> None:
    assert language(code).text(step_said(RUN, STEP)).replace("\u00a0", " ") == SAID[code]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("en", "gave up after 2 tries: it fits"),
        ("fr", "abandon après 2 tentatives : il tient en mémoire"),
        ("es", "se abandona tras 2 intentos: cabe"),
        ("de", "aufgegeben nach 2 Versuchen: es passt"),
    ],
)
def test_a_guard_in_each_language(code: str, words: str) -> None:
    why = say("guard.gave_up", tries=say("guard.tries", n=2), why=say("guard.verdict_fits"))
    assert language(code).text(why).replace("\u00a0", " ") == words


def test_a_lost_card_in_french_and_as_an_older_version_wrote_it() -> None:
    assert language("fr").text(problem_said("gpu_is_lost")).startswith("a disparu du bus\u202f; `dmesg")
    assert str(problem_said("fell off the bus; look again")) == "fell off the bus; look again"
