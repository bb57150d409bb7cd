"""A catalog sells what its file says and makes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brimful.adapters.providers.catalog import CatalogProvider
from brimful.errors import NotFound
from brimful.fleet.events import JobSubmitted, NodeGone
from brimful.fleet.state import Fleet
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.loop import tick
from brimful.scheduler.policies import read_policy
from brimful.scheduler.ports import Ports
from brimful.sim.world import MemoryStore
from tests.builders import USD, a_job, code_of

ROWS = """provider,region,zone,instance_type,gpu_model,gpu_count,on_demand_usd_h,spot_usd_h
aws,us-west-2,usw2-az1,p3.2xlarge,V100,1,3.06,0.92
aws,us-east-2,use2-az1,p3.8xlarge,V100,4,12.24,3.67
"""


def test_offers_are_read_once_and_again_when_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "offers.csv"
    path.write_text(ROWS)
    provider = CatalogProvider("list", path)
    first = provider.offers()
    assert [(each.gpus, each.is_spot) for each in first] == [(1, False), (1, True), (4, False), (4, True)]
    assert provider.offers() is first
    path.write_text(ROWS.replace("0.92", "0.95"))
    os.utime(path, (1, 1))
    assert provider.offers()[1].microusd_per_hour == 950_000


def test_a_folder_of_skypilot_is_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "lambda").mkdir()
    (tmp_path / "lambda" / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone\n"
        "gpu_1x_a10,A10,1,0.75,,us-east-1,\n"
    )
    (offer,) = CatalogProvider("sky", tmp_path).offers()
    assert (offer.site, offer.microusd_per_gpu_hour) == ("lambda-us-east-1", 750_000)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        CatalogProvider("list", tmp_path / "none.csv").offers()


def test_an_order_is_refused_with_its_reason_and_nothing_is_billed(tmp_path: Path) -> None:
    path = tmp_path / "offers.csv"
    path.write_text(ROWS)
    store, fleet = MemoryStore(), Fleet()
    job = a_job("job-1", limit_microusd_per_gpu_hour=5 * USD, predicted_work_s=3600.0)
    store.append([JobSubmitted(at_s=0, job=job)], after=0)
    ports = Ports(store=store, engines={}, providers={"list": CatalogProvider("list", path)}, buying=Buying())
    tick(fleet, ports, read_policy("brim").rules, now_s=0)
    (gone,) = [event for event in store.log if isinstance(event, NodeGone)]
    assert (gone.cause, code_of(gone.reason)) == ("refused", "adapters.only_a_catalog")
    assert not fleet.cloud.spent
