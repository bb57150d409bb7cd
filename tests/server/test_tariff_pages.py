"""The tariff, its forecast and its score, and tonight's price, drawn as the API tells them.

Nine days of a fleet that is busy by day have passed through the loop, hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from brimful.language import Number, Percent, Usd, language
from brimful.scheduler.policies import POLICIES
from brimful.units import HOUR_S
from tests.patience import PATIENCE_S
from tests.server.test_console import PATIENCE_MS, browser  # noqa: F401 - a fixture
from tools.demo import HABITS, Demo, Fate, served

pytestmark = pytest.mark.browser

EN = language("en")
HOURS = 9 * 24 + 15
WIDE, HIGH = 1000, 100  # of a chart


class Week(Demo):
    policy, rules = "brim", replace(POLICIES["brim"], tariff=True)

    def _live_through(self) -> None:
        for hour in range(HOURS):
            busy = self._dice.choice((2, 3, 3) if 8 <= hour % 24 < 20 else (0, 0, 1))
            for card, gpus in (("h100-sxm-80gb", 8), ("a100-sxm-80gb", 4)):
                for _ in range(busy):
                    user, team, name, command, _ = self._dice.choice(HABITS)
                    given: dict[str, Any] = {"user": user, "tenant": team, "name": name, "command": command}
                    self.submit(fate=Fate(work_s=HOUR_S - 60), gpus=gpus, gpu_types=(card,), **given)
            self.tick(HOUR_S)


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory,
    browser: Browser,  # noqa: F811
) -> Iterator[tuple[Page, httpx2.Client]]:
    """A signed-in page, and a client of the same server's API."""
    week = Week(tmp_path_factory.mktemp("week"))
    token = week.person("mara", "*", "operator")
    with served(week) as url:
        page = browser.new_context(locale="en", timezone_id="UTC").new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.clock.set_fixed_time(week.now_s)
        page.goto(url)
        page.fill("#token", token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".corner")).to_be_visible()
        headers = {"authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as http:
            yield page, http
        page.context.close()


def asked(http: httpx2.Client, path: str, **body: object) -> Any:
    answer = http.post(f"/v1/{path}", json=body) if body else http.get(f"/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def usd(microusd: int) -> str:
    return EN.text(Usd(microusd))


def clock(page: Page, at_s: int) -> str:
    """As the page writes it today, or on another day."""
    then, now = (
        datetime.fromtimestamp(at_s, UTC),
        datetime.fromtimestamp(page.evaluate("Date.now()") / 1000, UTC),
    )
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%b} {then.day} {then:%H:%M}"


def corners(shape: Locator) -> list[tuple[float, float]]:
    points = (shape.get_attribute("points") or "").split()
    return [(float(x), float(y)) for x, _, y in (point.partition(",") for point in points)]


def cheapest(quotes: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    return min(quotes, key=lambda each: (each["microusd_per_gpu_hour"], each["at_s"]))


def test_market_draws_the_tariff_with_the_forecast_behind_it_and_its_score(
    seen: tuple[Page, httpx2.Client],
) -> None:
    page, http = seen
    page.goto(str(http.base_url.join("/market")))
    prices = {each["gpu"]: each for each in asked(http, "prices")["pools"]}
    loads = {each["gpu"]: each for each in asked(http, "forecast?hours=48")["pools"]}
    drawn = 0
    for gpu in ("a100-sxm-80gb", "h100-sxm-80gb"):
        card = page.get_by_role("region", name="Prices").get_by_role("article").filter(has_text=gpu)
        quotes = prices[gpu]["ahead"][:48]
        costs = [each["microusd_per_gpu_hour"] for each in quotes]
        low, top = cheapest(quotes), max(costs)
        assert len(costs) == 48
        assert len({*costs}) > 5, "a flat line would prove little"
        tariff, load = card.locator("figure").all()
        expect(tariff.locator("figcaption")).to_contain_text(f"up to {usd(top)}")
        expect(tariff.locator("figcaption")).to_contain_text(
            f"{usd(low['microusd_per_gpu_hour'])}, {clock(page, low['at_s'])}"
        )
        # A step an hour: the middle of each hour lies at its price.
        line = corners(tariff.locator("polyline"))
        for i, cost in enumerate(costs):
            middle = (i + 0.5) * WIDE / 48
            (y,) = {a[1] for a, b in pairwise(line) if a[0] < middle < b[0]}
            assert y == pytest.approx(HIGH - 96 * cost / top, abs=0.06)

        told = loads[gpu]
        most = max([told["gpus"], *(each["high"] for each in told["ahead"])])
        expect(load.locator("figcaption")).to_contain_text(f"up to {EN.text(Number(most))} GPUs")
        likely, band = corners(load.locator("polyline")), corners(load.locator("polygon"))
        assert len(likely) == 48
        assert len(band) == 2 * 48
        for i, each in enumerate(told["ahead"]):
            heights = (likely[i][1], band[i][1], band[-1 - i][1])
            for y, n in zip(heights, (each["likely"], each["low"], each["high"]), strict=True):
                assert y == pytest.approx(HIGH - HIGH * n / most, abs=0.06)
        brim = float(load.locator("line.brim").get_attribute("y1") or 0)
        assert brim == pytest.approx(HIGH - HIGH * told["gpus"] / most, abs=0.06)
        assert told["score"]["hours"] >= 24
        expect(load.locator("p.small")).to_contain_text(f"{told['score']['hours']} ")
        expect(load.locator("p.small")).to_contain_text(EN.text(Percent(told["score"]["coverage"])))
        drawn += 1
    assert drawn == 2


def test_home_says_the_price_now_and_the_cheapest_of_the_next_day(seen: tuple[Page, httpx2.Client]) -> None:
    page, http = seen
    page.goto(str(http.base_url))
    for pool in asked(http, "prices")["pools"]:
        row = page.get_by_role("region", name="Prices").get_by_role("row", name=pool["gpu"])
        now, later = row.locator("td").all()
        expect(now).to_have_text(usd(pool["microusd_per_gpu_hour"]))
        if pool["market"]:
            expect(later).to_have_text("bids decide")
            continue
        low = cheapest(pool["ahead"][:24])
        assert low["microusd_per_gpu_hour"] < pool["microusd_per_gpu_hour"], "or tonight would be now"
        expect(later).to_have_text(f"{usd(low['microusd_per_gpu_hour'])} {clock(page, low['at_s'])}")


def test_submit_says_what_a_job_costs_now_and_tonight(seen: tuple[Page, httpx2.Client]) -> None:
    page, http = seen
    text = "command: python train.py\nfolder: /data\ngpus: 4\nmax_run: 3h\n"
    page.goto(str(http.base_url.join("/submit")))
    page.fill("#file", text)
    told = {each["gpu"]: each for each in asked(http, "jobs/check", text=text)["pools"]}
    assert len(told) == 3
    for gpu, pool in told.items():
        row = page.locator("#check").get_by_role("row", name=gpu)
        now, tonight = row.locator("td").nth(4), row.locator("td").nth(5)
        expect(now).to_contain_text(f"{usd(pool['microusd_per_hour'])} per hour")
        expect(now).to_contain_text(f"at most {usd(pool['most_microusd'])}")
        expect(tonight).to_contain_text(usd(pool["tonight_microusd_per_hour"]))
        if gpu == "l40s":  # bids decide there
            assert pool["tonight_s"] is None
            expect(tonight).to_contain_text("same")
            continue
        assert pool["tonight_microusd_per_hour"] < pool["microusd_per_hour"]
        expect(tonight).to_contain_text(clock(page, pool["tonight_s"]))
        expect(tonight).to_contain_text(f"at most {usd(pool['tonight_most_microusd'])}")
