"""Fit's estimates and published prices: work goes where it costs least, old cards included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.providers.offers import read_offers
from brimful.cli.fleet.estimates import estimates_for
from brimful.configs.read import read
from brimful.fit.inference import Serving
from brimful.fit.rates import Rates, serving_rates, training_rates
from brimful.fleet.events import LeaseGranted
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.rules import Rules, TypeChoice
from brimful.server.api.requests import Submission
from brimful.server.auth import Principal
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import find_preset
from tests.builders import AFleet

CARDS = ("t4", "l4", "a10g", "l40s")
NANOGPT = (Path(__file__).resolve().parents[2] / "examples" / "nanogpt" / "train_fineweb.py").read_text()
Predicted = dict[str, dict[str, float]]
HALF = "\ndtype = 'float16'\nbatch_size = 8\ngradient_accumulation_steps = 8\n"


@pytest.fixture(scope="module")
def prices(shared_data: Path) -> dict[str, int]:
    """The cheapest spot instance with one GPU of each card, as AWS published them in August 2026."""
    offers, _ = read_offers(shared_data / "prices" / "gpu_offers.csv.gz")
    spot = [offer for offer in offers if (offer.provider, offer.gpus, offer.is_spot) == ("aws", 1, True)]
    return {card: min(o.microusd_per_hour for o in spot if o.gpu == card) for card in CARDS}


def starts_of(prices: dict[str, int], *jobs: Job, types: TypeChoice = "cheap") -> list[LeaseGranted]:
    """On a fleet with one of each card."""
    nodes = [
        Node(site="here", node=card, gpu=card, gpus=1, microusd_per_gpu_hour=price, declared=True)
        for card, price in prices.items()
    ]
    return list(AFleet(nodes).waiting(*jobs).plan(rules=Rules(types=types)).starts)


def submitted(predicted: Predicted) -> Job:
    """As the API makes a job of what `brimful submit` sends."""
    asked = {"command": ["true"], "folder": "/", "predicted": predicted, "gpu_types": sorted(predicted)}
    job = Submission.model_validate(asked).as_job(
        Principal(token="t", name="t", roles={"*": "submitter"}), ""
    )
    return Job(job="a", gpus=1, gpu_types=job.gpu_types, rates=job.rates, peak_bytes=job.peak_bytes)


def predicted(rates: Rates) -> Predicted:
    """The same of a job that is no training: what fits, and the seconds of a thousand tokens."""
    answers = {card: rates(find_gpu(card), 1).tokens_per_s for card in CARDS}
    return {card: {"peak_bytes": 1, "step_s": 1000 / rate} for card, rate in answers.items() if rate}


def a_training(folder: Path) -> Predicted:
    config = folder / "train.py"
    config.write_text(NANOGPT + HALF)
    return estimates_for(str(config), list(CARDS), gpus=1).predicted


def a_distillation(folder: Path) -> Predicted:
    config = folder / "train.py"
    config.write_text(NANOGPT + HALF)
    student = read(str(config))
    teacher = find_preset("gpt2-xl").model
    return predicted(training_rates(student.model, student.training, teacher, correction=None))


def an_inference(_: Path) -> Predicted:
    return predicted(serving_rates(find_preset("gpt2").model, Serving()))


@pytest.mark.parametrize(
    ("of", "cheapest"), [(a_training, "t4"), (a_distillation, "l40s"), (an_inference, "t4")]
)
def test_a_job_goes_to_the_old_card_where_its_work_costs_less(
    prices: dict[str, int], of: Callable[[Path], Predicted], cheapest: str, tmp_path: Path
) -> None:
    job = submitted(of(tmp_path))
    (start,) = starts_of(prices, job)
    assert start.node == min(CARDS, key=lambda card: prices[card] / job.rate(card)) == cheapest
    (start,) = starts_of(prices, job, types="fast")
    assert start.node == "l40s"


def test_a_job_that_does_not_fit_the_old_card_goes_to_the_cheapest_it_fits(prices: dict[str, int]) -> None:
    """8 B parameters in 16 bits and a long prompt need more than 16 GB."""
    job = submitted(predicted(serving_rates(find_preset("llama-3.1-8b").model, Serving(prompt_tokens=8000))))
    fitting = [card for card in CARDS if card in dict(job.rates)]
    assert "t4" not in fitting
    (start,) = starts_of(prices, job)
    assert start.node == min(fitting, key=lambda card: prices[card] / job.rate(card))


def test_a_job_whose_speeds_nobody_knows_takes_the_less_dear_of_equal_places() -> None:
    dear_first = {"l40s": 2_000_000, "t4": 500_000}
    (start,) = starts_of(dear_first, Job(job="a", gpus=1))
    assert start.node == "t4"


@pytest.mark.parametrize("now_s", [0, 300], ids=["at a review", "between reviews"])
def test_a_review_of_types_knows_prices_too(now_s: int) -> None:
    nodes = [
        Node(site="here", node=gpu, gpu=gpu, gpus=1, microusd_per_gpu_hour=price, declared=True)
        for gpu, price in (("a-dear", 2_000_000), ("b-cheap", 500_000))
    ]
    rules = replace(POLICIES["brim"], types="cheap")
    (start,) = AFleet(nodes).waiting(Job(job="a", gpus=1)).plan(rules=rules, now_s=now_s).starts
    assert start.node == "b-cheap"


def test_who_finds_the_cheapest_taken_does_not_wait_for_it(prices: dict[str, int], tmp_path: Path) -> None:
    job = submitted(an_inference(tmp_path))
    starts = starts_of(prices, job, replace(job, job="b"))
    assert starts[0].node == "t4"
    assert len(starts) == 2
