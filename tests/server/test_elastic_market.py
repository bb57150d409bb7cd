"""An elastic job in a market pool with real processes: wide, outbid for a part, wide again."""

from __future__ import annotations

from pathlib import Path

from brimful.cli.money.accounts import all_events
from brimful.market.ledger import Ledger
from brimful.server.doctor import examine
from tests.builders import eventually
from tests.market.test_invoice import bills, lines
from tests.server.builders import wind_down
from tests.server.test_market import FLOOR, Shop
from tests.server.test_moves import until


def test_a_job_outbid_for_a_part_goes_on_narrower_and_grows_again(tmp_path: Path) -> None:
    shop, done = Shop(tmp_path, f"sqlite:///{tmp_path / 'log.db'}", gpus=4, min_run_s=1), tmp_path / "done"
    try:
        wide = shop.submit(
            tenant="patient", gpus="1..4", limit_microusd_per_gpu_hour=2 * FLOOR, checkpoint_cost_s=1
        )

        def works(lease: int) -> bool:
            """It has that many leases, and in the last one it takes steps."""
            shop.phase(wide)
            leases = shop.service.reader.job(wide).leases
            path = shop.folder / "leases" / f"{wide}.{lease}" / "log"
            return len(leases) == lease and path.exists() and path.read_text().count("step") > 2

        eventually(lambda: works(1))
        rival = shop.submit(
            tenant="hasty", gpus=2, command=[*until(done)], limit_microusd_per_gpu_hour=6 * FLOOR
        )
        eventually(lambda: works(2))
        eventually(lambda: shop.phase(rival) == "running")
        done.touch()
        eventually(lambda: works(3))
        (tmp_path / "go").touch()
        eventually(lambda: shop.phase(wide) == shop.phase(rival) == "finished")
        state = shop.service.reader.job(wide)
        steps = shop.printed(wide)
        log = list(all_events(shop.store))
        broken = [each.broken for each in examine(shop.store, [shop.engine]) if not each.kept]
        folded = shop.service.reader.ledger.balances
    finally:
        done.touch()
        (tmp_path / "go").touch()
        shop.access.close()
        wind_down(shop.service)
        shop.store.close()

    assert [lease.size for lease in state.leases] == [4, 2, 4]
    assert steps == [f"step {n}" for n in range(len(steps))]  # from its checkpoint: every step once, in order
    assert not broken
    ledger = Ledger()
    made = {bill.of: bill.microusd for bill in bills(lines(log, ledger), by="team")}
    assert made == ledger.spent_by_tenant == {name: -ledger.balance(f"tenant:{name}") for name in made}
    assert made["patient"] == sum(lease.cost_microusd(0) for lease in state.leases)
    assert sum(ledger.balances.values()) == 0
    assert ledger.balances == folded
