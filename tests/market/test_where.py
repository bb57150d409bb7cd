"""Where to run: the sum, its parts, and old cards that win by themselves."""

from __future__ import annotations

import csv
import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.providers.offers import read_offers
from brimful.cli.money.where import rates_of
from brimful.configs.read import read
from brimful.errors import BadInput, NotFound
from brimful.fit.inference import Serving
from brimful.fit.rates import Rates, serving_rates, spread, training_rates
from brimful.language import Sentence, say
from brimful.market.where import EGRESS, Need, Place, egress_microusd, is_worth_moving, never_end, rank, weigh
from brimful.specs.offer import Offer
from brimful.specs.presets import find_preset

USD = 1_000_000
ROOT = Path(__file__).resolve().parents[2]


def an_offer(gpu: str = "t4", *, usd: float = 1.0, is_spot: bool = False, provider: str = "own") -> Offer:
    return Offer(
        provider=provider,
        region="here",
        zone="",
        instance="box",
        gpu=gpu,
        gpus=1,
        microusd_per_hour=round(usd * USD),
        is_spot=is_spot,
    )


def test_the_sum_is_price_egress_restarts_and_waiting() -> None:
    need = Need(
        work=3600 * 10.0,
        state_bytes=100 * 10**9,
        at_provider="aws",
        at_region="x",
        restart_s=720,
        lost_s=360,
        microusd_per_wait_hour=USD,
    )
    place = weigh(an_offer(usd=2, is_spot=True), need, work_per_s=1.0)
    assert place.hours == 10
    assert place.compute == 20_400_000  # ten hours and a start
    assert place.egress == 9 * USD
    assert place.restarts == 618_556  # 18 minutes of each ten hours, and of what makes up for them: 1 / 0.97
    assert place.waiting == 10_509_278
    assert place.total == place.compute + place.egress + place.restarts + place.waiting


@pytest.mark.parametrize("provider", EGRESS)
def test_egress_never_falls_and_never_jumps(provider: str) -> None:
    sizes = [10**9 * gb for gb in range(0, 200_000, 50)]
    costs = [egress_microusd(size, provider=provider, region="x", to=an_offer()) for size in sizes]
    steps = [b - a for a, b in itertools.pairwise(costs)]
    assert min(steps) > 0
    assert max(steps) <= 50 * EGRESS[provider][0][1]
    assert egress_microusd(10**13, provider="aws", region="x", to=an_offer()) == 900 * USD


def test_nothing_is_paid_inside_a_region_or_to_leave_who_asks_nothing() -> None:
    here = an_offer(provider="aws")
    assert egress_microusd(10**12, provider="aws", region="here", to=here) == 0
    assert egress_microusd(10**12, provider="lambda", region="x", to=here) == 0
    assert 0 < egress_microusd(10**12, provider="aws", region="x", to=here) < 90 * USD


def test_a_card_where_the_job_does_not_fit_is_no_place() -> None:
    places = rank([an_offer("t4", usd=0.1), an_offer("h100", usd=3)], Need(work=100.0), {("h100", 1): 1.0})
    assert [place.offer.gpu for place in places] == ["h100"]


def test_a_move_must_save_twice_what_it_costs() -> None:
    need = Need(work=3600 * 100.0, state_bytes=10**12, at_provider="aws", at_region="x")
    now = weigh(an_offer(usd=3), Need(work=3600 * 100.0, restart_s=0), work_per_s=1.0)
    assert is_worth_moving(now, weigh(an_offer(usd=1), need, work_per_s=1.0))
    assert not is_worth_moving(now, weigh(an_offer(usd=2.9), need, work_per_s=1.0))


NANOGPT = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
SMALL = ["n_layer=6", "n_head=6", "n_embd=384", "block_size=256", "batch_size=64", "dtype='float16'"]
HALF = ["dtype='float16'", "batch_size=8", "gradient_accumulation_steps=8"]
T4 = {"t4", "t4g"}  # one chip; the second beside an Arm processor
OLD = {"k80", "p100-pcie-16gb", "v100-sxm-16gb", "v100-sxm-32gb", *T4}


def best_place(offers: list[Offer], job: Rates) -> tuple[Place, dict[str, Sentence]]:
    rates, why_not = rates_of(job, {(offer.gpu, offer.gpus) for offer in offers})
    return rank(offers, Need(work=1e9), rates)[0], why_not


@pytest.fixture(scope="module")
def real_offers(shared_data: Path) -> list[Offer]:
    """Published prices of one day in August 2026."""
    return read_offers(shared_data / "prices" / "gpu_offers.csv.gz")[0]


# On gcp an H100 on spot costs $1.09 per hour, and a T4 reaches two thirds of its data sheet.
@pytest.mark.parametrize(("provider", "small"), [("aws", T4), ("azure", T4), ("gcp", {"h100-sxm-80gb"})])
def test_a_small_training_goes_to_an_old_card_and_a_larger_one_does_not(
    real_offers: list[Offer], provider: str, small: set[str]
) -> None:
    offers = [offer for offer in real_offers if offer.provider == provider]
    for settings, is_small in ((SMALL, True), ([], False)):
        reading = read(NANOGPT, overrides=settings)
        best, _ = best_place(offers, training_rates(reading.model, reading.training, correction=None))
        assert best.offer.gpu in small if is_small else best.offer.gpu not in T4, best


@pytest.mark.parametrize("provider", ["aws", "azure", "vast"])
def test_a_distillation_goes_to_an_old_card(real_offers: list[Offer], provider: str) -> None:
    """GPT-2 learns from GPT-2 XL: a forward pass of 1.6 B parameters for each of its own steps."""
    offers = [offer for offer in real_offers if offer.provider == provider]
    student = read(NANOGPT, overrides=HALF)
    job = training_rates(student.model, student.training, find_preset("gpt2-xl").model, correction=None)
    assert best_place(offers, job)[0].offer.gpu in OLD


@pytest.mark.parametrize("provider", ["aws", "azure"])
def test_a_batch_inference_goes_to_an_old_card_where_it_fits_and_is_cheaper(
    real_offers: list[Offer], provider: str
) -> None:
    offers = [offer for offer in real_offers if offer.provider == provider]
    best, _ = best_place(offers, serving_rates(find_preset("gpt2").model, Serving()))
    assert best.offer.gpu in T4
    four_bits = serving_rates(find_preset("llama-3.1-8b").model, Serving(weight_bits=4))
    assert best_place(offers, four_bits)[0].offer.gpu in T4


def test_old_cards_lose_where_the_job_does_not_fit_or_a_new_one_is_cheaper(real_offers: list[Offer]) -> None:
    llama = serving_rates(find_preset("llama-3.1-8b").model, Serving())
    best, why_not = best_place([o for o in real_offers if o.provider == "aws"], llama)
    assert best.offer.gpu not in OLD
    best, why_not = best_place([o for o in real_offers if o.provider == "azure"], llama)
    assert why_not["k80"].code == "fit.short_by"
    # Spot H100s cost little there: per token they are cheaper than any old card.
    best, _ = best_place(
        [o for o in real_offers if o.provider == "gcp"], serving_rates(find_preset("gpt2").model, Serving())
    )
    assert best.offer.gpu == "h100-sxm-80gb"


def test_several_gpus_share_the_batch_and_keep_it() -> None:
    training = read(NANOGPT, overrides=HALF).training
    four = spread(training, 4)
    assert four is not None
    assert (four.gpus, four.effective_batch) == (4, training.effective_batch)
    assert spread(training, 7) is None
    rates, why_not = rates_of(
        training_rates(read(NANOGPT).model, training, correction=None),
        {("t4", 1), ("t4", 4), ("t4", 7), ("h100", 7)},
    )
    assert 2 < rates["t4", 4] / rates["t4", 1] <= 4
    assert why_not == {"h100": say("fit.step_cannot_split", n=64, gpus=7)}


def test_offers_come_from_csv_toml_or_a_skypilot_catalog(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        '[[offer]]\nprovider = "own"\ngpu_model = "T4"\non_demand_usd_h = 0.2\n'
    )
    (tmp_path / "aws").mkdir()
    (tmp_path / "aws" / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Price,SpotPrice,Region,AvailabilityZone\n"
        "g4dn.xlarge,T4,1.0,4,0.526,0.2,us-east-1,us-east-1a\nm5.large,,,2,0.1,0.04,us-east-1,us-east-1a\n"
    )
    (own,), _ = read_offers(tmp_path / "own.toml")
    assert (own.gpu, own.microusd_per_hour) == ("t4", 200_000)
    offers, _ = read_offers(tmp_path)
    assert [(o.provider, o.microusd_per_hour, o.is_spot) for o in offers] == [
        ("aws", 526_000, False),
        ("aws", 200_000, True),
    ]


def test_a_bad_price_is_refused_by_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "offers.csv"
    bad.write_text("gpu_model,on_demand_usd_h\nT4,0.2\nT4,cheap\n")
    with pytest.raises(BadInput) as refused:
        read_offers(bad)
    said = refused.value.said.as_dict()
    assert (said["code"], said["text"]) == ("adapters.bad_number", "cheap")
    assert "line 3" in said["what"]
    with pytest.raises(NotFound):
        read_offers(tmp_path / "none.csv")


def test_an_offer_where_interruptions_eat_all_work_is_no_place() -> None:
    need = Need(work=3600.0, restart_s=1800, lost_s=1800, interruptions_per_hour=1.0)
    spot, steady = an_offer(usd=0.01, is_spot=True), an_offer(usd=1)
    assert [place.offer for place in rank([spot, steady], need, {("t4", 1): 1.0})] == [steady]
    assert never_end([spot, steady], need, {("t4", 1): 1.0}) == {"t4": 1}
    assert never_end([spot, steady], need, {}) == {}, "it does not even fit there"
    calm = replace(spot, interruptions_per_hour=0.1)
    assert [place.offer for place in rank([calm, steady], need, {("t4", 1): 1.0})] == [calm, steady]


def test_risk_and_value_of_time_are_items_of_their_own() -> None:
    need = Need(work=36000.0, microusd_per_wait_hour=0)
    assert weigh(an_offer(is_spot=True), need, work_per_s=1.0).waiting == 0
    assert weigh(an_offer(is_spot=True), need, work_per_s=1.0).restarts > 0
    hasty = replace(need, microusd_per_wait_hour=USD)
    assert weigh(an_offer(), hasty, work_per_s=1.0).restarts == 0
    assert weigh(an_offer(), hasty, work_per_s=1.0).waiting > 10 * USD


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("V100", "v100-sxm-16gb"),
        ("V100-32GB", "v100-sxm-32gb"),
        ("A100", "a100-sxm-40gb"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("H100-MEGA", "h100-sxm-80gb"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("RTXPRO6000-WK", "rtx-pro-6000"),
        ("RTX-PRO-6000-CC", "rtx-pro-6000"),
        ("RTXA6000", "rtx-a6000"),
        ("RTX6000-Ada", "rtx-6000-ada"),
    ],
)
def test_names_of_skypilots_catalogs_are_known(tmp_path: Path, name: str, gpu: str) -> None:
    (tmp_path / "aws").mkdir()
    rows = f"InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\nbox,{name},8,8,4,x\n"
    (tmp_path / "aws" / "vms.csv").write_text(rows)
    offers, left_out = read_offers(tmp_path)
    assert [offer.gpu for offer in offers] == [gpu, gpu]
    assert not left_out


def test_every_row_is_an_offer_or_is_counted_with_its_reason(tmp_path: Path) -> None:
    rows = ("t4,1,1,0.5", "t4,0.5,1,", "a100-mig-10gb,1,1,", "abacus,1,1,", "t4,1,,", "t4,1,0,0")
    (tmp_path / "o.csv").write_text("gpu_model,gpu_count,on_demand_usd_h,spot_usd_h\n" + "\n".join(rows))
    offers, left_out = read_offers(tmp_path / "o.csv")
    assert len(offers) == 2
    shares = {"t4": 1, "a100-mig-10gb": 1}
    assert left_out == {"share": shares, "unknown_gpu": {"abacus": 1}, "no_price": {"t4": 2}}


def test_none_of_the_published_offers_is_dropped_in_silence(shared_data: Path, tmp_path: Path) -> None:
    """Every row read is used or counted with a reason: each copy of a row has its number as its instance."""
    with gzip.open(shared_data / "prices" / "gpu_offers.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [{**row, "instance_type": str(n)} for n, row in enumerate(csv.DictReader(file))]
    assert len(rows) == 16_014
    with (tmp_path / "numbered.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)

    offers, left_out = read_offers(tmp_path / "numbered.csv")

    counted = sum(sum(of.values()) for of in left_out.values())
    assert len({offer.instance for offer in offers}) + counted == len(rows)
    assert counted < 1_000
    assert sum(left_out["unknown_gpu"].values()) < 50
    assert all(offer.is_spot for offer in offers if offer.provider == "mithril")
