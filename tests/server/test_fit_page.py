"""Fit in the browser: the API's numbers, drawn; nothing that is pasted is run, kept or followed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient

from brimful.configs.pasted import suffix_of
from brimful.configs.read import read
from brimful.errors import Refused, WorldFailed
from brimful.fit.fit import fit_reading
from brimful.language import Size, choose, language
from brimful.server.app import make_app
from brimful.server.console.fit_charts import chance_said
from brimful.server.fitting.fitter import MOST_OF_ONE, Fitter
from brimful.specs.gpu import find_gpu
from tests.server.live import live
from tests.server.test_console import (  # noqa: F401 - two fixtures
    FAINT_WORDS,
    HOSTILE,
    PATIENCE_MS,
    Desk,
    browser,
    desk,
    words,
)
from tests.server.test_sign_in_browser import link_of

CONFIG = Path(__file__).parents[2] / "examples" / "nanogpt" / "train_fineweb.py"
ADVICE = "You should call torch.cuda.empty_cache() each step, it gives you more memory."
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "11.60 GiB of which 1.20 GiB is free. Of the allocated memory 9.10 GiB is allocated by PyTorch, and "
    "200.00 MiB is reserved by PyTorch but unallocated."
)


def plain(text: str) -> str:
    return " ".join(text.split())


def asked(desk: Desk, **body: Any) -> Any:  # noqa: F811
    answer = desk.client.post("/v1/fit", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("batch_size = 12\nn_layer = 6\n", ".py"),
        ('{"hidden_size": 768}', ".json"),
        ("model_name_or_path: gpt2\nbf16: true\n", ".yaml"),
        ('[model]\nname = "llama3"\n', ".toml"),
        (MESSAGE, None),
        ("RuntimeError: CUDA out of memory", None),
        (ADVICE, None),
    ],
)
def test_what_is_pasted_is_known_by_its_form(text: str, suffix: str | None) -> None:
    assert suffix_of(text) == suffix


def test_the_answer_is_that_of_the_command(desk: Desk) -> None:  # noqa: F811
    found = asked(desk, config=CONFIG.read_text(), gpus=["4070", "h100-sxm-80gb"])
    reading = read(str(CONFIG))
    for card in found["cards"]:
        there = fit_reading(reading, find_gpu(card["gpu"]), correction=None).as_dict()
        assert card["estimate"]["memory"]["device_bytes"] == there["memory"]["device_bytes"]
        assert card["estimate"]["speed"]["mfu"] == pytest.approx(there["speed"]["mfu"])
        assert card["batch_size"] in [point["value"] for point in card["sweep"]["points"]]
    assert [bool(card["ladder"]) for card in found["cards"]] == [True, False]


def test_a_message_in_the_first_box_is_explained_and_advice_is_judged(desk: Desk) -> None:  # noqa: F811
    found = asked(desk, config=MESSAGE)
    assert found["config"] is None
    assert found["explanation"]["recognised"]
    judged = asked(desk, config=CONFIG.read_text(), text=ADVICE, gpus=["rtx-4070"])["claims"]["claims"]
    assert [one["verdict_code"] for one in judged] == ["false"]


@pytest.mark.parametrize(
    "config",
    [
        "import os\nbatch_size = os.system('touch {there}')\n",
        "batch_size = 12\nexec(open('{there}').read())\n",
        "model_name_or_path: gpt2\ndeepspeed: {secret}\n",
        "model_name_or_path: {secret}\nbf16: true\n",
        '{{"_name_or_path": "{secret}", "model_type": "llama"}}',
    ],
)
def test_a_config_is_neither_run_nor_followed(desk: Desk, tmp_path: Path, config: str) -> None:  # noqa: F811
    there, secret = tmp_path / "there", tmp_path / "secret.json"
    secret.write_text('{"word": "nobody-may-read-this"}')
    text = config.format(there=there, secret=secret)
    answer = desk.client.post("/v1/fit", json={"config": text, "gpus": ["rtx-4070"]})
    assert answer.status_code in (200, 400, 404)
    assert not there.exists()
    assert "nobody-may-read-this" not in answer.text


def test_a_question_that_takes_too_long_ends_and_the_next_is_answered() -> None:
    fitter = Fitter(answer_s=0.001)
    question: dict[str, Any] = {"config": "", "text": "", "model": "gpt2", "gpus": ["t4"]}
    question |= {"settings": [], "other_bytes": None}
    with pytest.raises(WorldFailed):
        fitter.ask(**question)
    fitter._answer_s = 600
    assert fitter.ask(**question)["cards"][0]["gpu"] == "t4"
    fitter.close()


def test_one_person_does_not_take_all_places_in_the_queue() -> None:
    fitter = Fitter()
    question: dict[str, Any] = {"config": "", "text": "", "model": "gpt2", "gpus": ["t4"]}
    question |= {"settings": [], "other_bytes": None}
    with ThreadPoolExecutor() as pool:
        with fitter._turn:  # somebody's long text is being read
            asked = [pool.submit(fitter.ask, asker="ann", **question) for _ in range(MOST_OF_ONE)]
            while len(fitter._waiting) < MOST_OF_ONE:
                wait(asked, timeout=0.01)
            with pytest.raises(Refused) as refused:
                fitter.ask(asker="ann", **question)
            assert refused.value.code == "too_many"
            asked.append(pool.submit(fitter.ask, asker="ben", **question))
        assert [each.result()["cards"][0]["gpu"] for each in asked] == ["t4"] * (MOST_OF_ONE + 1)
    assert fitter._waiting == []
    fitter.close()


def test_who_has_no_account_is_answered_only_where_the_operator_allows_it(desk: Desk) -> None:  # noqa: F811
    body = {"model": "gpt2", "gpus": ["t4"]}
    form = {"model": "gpt2", "gpu": "t4"}
    for is_open, answers in ((False, (401, 401, 403)), (True, (200, 200, 200))):
        app = make_app(desk.service, desk.access, open_fit=is_open)
        http = TestClient(app, base_url="http://127.0.0.1")
        found = (http.post("/v1/fit", json=body), http.get("/fit?model=gpt2"), http.post("/fit", data=form))
        assert tuple(each.status_code for each in found) == answers
        assert http.get("/v1/jobs").status_code == 401
        http.cookies.set("brimful_session", "somebody's")
        assert http.post("/fit", data=form).status_code == 403, "a session's form needs the session's key"


def told_chance(code: str, chance: float) -> str:
    choose(code)
    try:
        return plain(chance_said(chance))
    finally:
        choose("en")


def test_the_page_shows_the_numbers_of_the_api_in_the_readers_language(desk: Desk) -> None:  # noqa: F811
    estimate = asked(desk, model="gpt2-xl", gpus=["rtx-4090"], settings=["batch_size=2"])["cards"][0][
        "estimate"
    ]
    needs = estimate["memory"]["device_bytes"]["likely"]
    for code, title in (("en", "Will it fit?"), ("fr", "Est-ce que ça tient"), ("de", "Passt es?")):
        html = desk.client.get(
            "/fit?model=gpt2-xl&gpu=rtx-4090&set=batch_size%3D2", headers={"accept-language": code}
        ).text
        assert title in html
        assert f'<html lang="{code}">' in html
        assert plain(language(code).text(Size(needs))) in words(html)
        assert told_chance(code, estimate["chance_of_running_out"]) in words(html)
        for item in estimate["memory"]["items"]:
            assert plain(language(code).text(Size(item["bytes"]))) in words(html)


def test_hostile_words_are_text_on_the_page_of_fit(desk: Desk) -> None:  # noqa: F811
    app = make_app(desk.service, desk.access, open_fit=True)
    http = TestClient(app, base_url="http://127.0.0.1")
    for field in ("config", "text", "model", "settings", "other_mib", "gpu"):
        html = http.post("/fit", data={"model": "gpt2", "gpu": "t4", field: HOSTILE}).text
        assert "<script" not in html
        assert "<img" not in html
    assert "<script" not in http.get("/fit", params={"model": HOSTILE, "gpu": HOSTILE, "set": HOSTILE}).text
    much = http.post("/fit", data={"config": "x" * 100_001, "gpu": "t4"})
    assert "banner bad" in much.text


@pytest.mark.browser
def test_a_config_is_pasted_and_its_answer_read_on_a_phone(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    with live(tmp_path / "data", "--slots", "1", "--open-fit") as server:
        home = link_of(server).partition("/console")[0]
        context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        problems: list[str] = []
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.goto(f"{home}/fit")
        page.fill("#config", CONFIG.read_text())
        page.fill("#text", f"{ADVICE} {HOSTILE}")
        page.set_checked('input[value="rtx-4070"]', checked=True)
        page.get_by_role("button", name="Check").click()
        expect(page.locator(".bars .part").first).to_be_visible()
        assert page.locator("#config").input_value() == CONFIG.read_text()
        assert page.title() != "owned"
        page.wait_for_load_state()  # of the stylesheet too
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(FAINT_WORDS) == []
        assert problems == []
        context.close()
