"""The Slurm engine: brimful decides where a lease runs, Slurm runs it there.

We use Slurm's own commands. A lease is a batch job named `brimful:<deployment>:<lease>` on the chosen nodes;
under `srun` each rank has the same runner as in every engine (runner.py). Slurm chooses the GPUs of a node,
so nodes are filled by count.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from brimful.adapters.capabilities import LogPiece, SeenJob
from brimful.adapters.engines import logs, samples
from brimful.adapters.engines.cluster import HELD_S, ClusterEngine, Given
from brimful.adapters.engines.devices import catalog_name, why_strange
from brimful.adapters.engines.job_users.isolation import NOTICE_MODE
from brimful.adapters.engines.job_users.users import JobUsers
from brimful.adapters.engines.lease_folders import LookAt, each_lease, facts, failing, rank_env
from brimful.adapters.engines.slurm import batch, look
from brimful.adapters.engines.slurm.commands import Commands, commands_at
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.tenants import Tenants, give_folder
from brimful.adapters.engines.slurm.text import HOLDING, PASSING, EndRow, JobRow, NodeRow, Span
from brimful.adapters.engines.watch import TAKEN
from brimful.adapters.files import NOTE_BYTES, reserve, write_json
from brimful.adapters.sites import Site, Surroundings, needs_nothing_else, options_of
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import Node
from brimful.job import read_plain
from brimful.language import os_words, say, verbatim
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

SUBMITS_AT_ONCE = 4  # sbatch does 55 a second in sequence, 84 with four (22.05, measured)
TAKEN_S = 300.0  # by then a node that its cloud takes back is gone, and Slurm has noticed
MOST_RANKS = 4096
NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)  # of a job
LATE_S = 5  # past its grace, Slurm ends a job that its runner has not ended
RACKS_S = CLOCK_S = 300.0
OTHERS_S = 30.0
CLOCK = ".clock.json"  # stored, so that a lease's run time is measured by one clock
SILENT_S = 600  # if a tenant's runner has not reported its start for this long, Slurm's word counts


def slurm_site(site: Site, given: Surroundings) -> SlurmEngine:
    """Factory for the entry point `slurm`."""
    options = options_of(site, SlurmOptions)
    needs_nothing_else(replace(site, mode="run", address=""))
    runs_as = given.runs_as(1)
    users = [] if runs_as is None else [user.name for user in runs_as.users.values()]
    return SlurmEngine(
        given.folder,
        commands_at(site, options, users),
        options,
        site=site,
        microusd_per_gpu_hour=given.price_of(site),
        log_bytes=given.log_bytes,
        code=given.code,
        runs_as=runs_as,
        store_env=given.store_env_of(site),
    )


class SlurmEngine(ClusterEngine):
    def __init__(
        self,
        root: Path,
        commands: Commands,
        options: SlurmOptions,
        *,
        site: Site,
        log_bytes: int,
        runs_as: JobUsers | None = None,
        **given: Unpack[Given],
    ) -> None:
        super().__init__(root, site=site, log_bytes=log_bytes, runs_as=runs_as, **given)
        self._tenants = Tenants({} if runs_as is None else runs_as.users, site=site.site)
        if self._tenants.users:
            if self._store_env:
                raise BadInput(say("slurm.users_see_credentials", site=site.site))
            self._tenants.let_in(root, Path(options.python or sys.executable))
        self._commands, self._options = commands, options
        self._prefix = f"brimful:{self.identity[:8]}:"
        self._rows: dict[str, NodeRow] = {}
        self._racks: tuple[float, dict[str, str]] = (float("-inf"), {})
        self._jobs: dict[str, list[JobRow]] | None = None  # by lease, from a poll that nobody has used yet
        self._ours: dict[str, JobRow] | None = None  # with GPUs, by number, as of the last poll
        self._on: Counter[str] = Counter()  # our GPUs on each node, as of then
        self._foreign: dict[str, int] = {}  # GPUs that others hold on each node
        self._least: dict[str, int] = {}  # and a lower bound
        self._others: dict[str, list[str]] = {}  # who they are
        self._others_asked = (float("-inf"), self._foreign)
        self._lived: set[str] = set()  # jobs that were not over at the last look
        self._told: dict[str, list[JobRow]] = {}  # leases reported as running, and what Slurm said about them
        self._pending: dict[str, float] = {}  # since when we have seen it wait
        self._parts: dict[str, Parts] = {}  # as ordered: a tenant's file may say anything
        self._late: dict[str, float] = {}  # stopped leases: when Slurm should end them
        self._skew_s = float((facts(root / CLOCK) or {}).get("skew_s", 0.0))  # of the controller's clock
        self._clock_asked = float("-inf")

    def admit(self, tenant: str) -> None:
        """Slurm separates users: tenants with separate users may share the site."""
        if tenant not in self._tenants.users:
            super().admit(tenant)

    def _as_tenant(self, lease: str) -> contextlib.AbstractContextManager[None]:
        return self._tenants.acting_in(self._folder(lease))

    # -- nodes -------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        if self._ours is None:
            self._poll()
        rows = self._commands.nodes()
        before = self._ours
        self._jobs = self._poll()
        self._compare_clocks()
        self._hold_lost_nodes()
        self._rows = {row.node: row for row in rows}
        self._count_strangers(before or {})
        self._ask_who()
        self._closed = {}
        return self._kept([self._node(row) for row in rows if self._is_open(row)])

    def _compare_clocks(self) -> None:
        """As precisely as a clock with whole seconds and a slow answer allow."""
        if self._clock() - self._clock_asked < CLOCK_S:
            return
        self._clock_asked, before_s = self._clock(), time.time()
        said_s = self._commands.clock_s()
        if said_s is None:
            return
        least_s, most_s = said_s - time.time(), said_s + 1 - before_s
        if least_s - 1 <= self._skew_s <= most_s + 1:
            return
        self._skew_s = 0.0 if least_s - 1 <= 0 <= most_s + 1 else float(round((least_s + most_s) / 2))
        with contextlib.suppress(OSError):
            write_json(self._root / CLOCK, {"skew_s": self._skew_s})

    def _hold_lost_nodes(self) -> None:
        """Where Slurm evicted a lease, someone else is about to start, whatever it reports as free."""
        rows = [row for those in (self._jobs or {}).values() for row in those]
        until = self._clock() + self._options.pending_s
        for row in rows:
            if row.state == "PREEMPTED" and row.name in self._lived:
                self._held |= {node: max(until, self._held.get(node, 0.0)) for node in row.nodes}
        self._lived = {row.name for row in rows if row.state in look.LIVING}

    def _count_strangers(self, before: Mapping[str, JobRow]) -> None:
        """GPUs in use on each node minus ours: a lower and an upper bound.

        We ask Slurm for our jobs before and after asking for the nodes. A job that started or ended in
        between may or may not be counted. Nodes are offered by the last count, kept within both bounds: a
        lease of ours that just ended is not a stranger. A waiting lease is handed back by the lower bound.
        """
        now = self._ours or {}
        certain = {number: row for number, row in now.items() if row.state not in PASSING}
        throughout = [row for number, row in certain.items() if number in before]
        sure, here, any_of = (
            _gpus_on(throughout),
            _gpus_on(certain.values()),
            _gpus_on({**before, **now}.values()),
        )
        nodes = self._rows.items()
        most = {n: max(0, min(row.used - sure[n], row.gpus.total - here[n])) for n, row in nodes}
        self._least = {n: max(0, row.used - any_of[n]) for n, row in nodes}
        last = self._foreign
        self._foreign = {n: min(max(last.get(n, most[n]), self._least[n]), most[n]) for n in most}

    def _ask_who(self) -> None:
        """Only people want to know: at once if the count has changed, otherwise rarely."""
        asked, before = self._others_asked
        if self._foreign != before or self._clock() - asked >= OTHERS_S:
            self._others_asked = self._clock(), self._foreign
            self._others = self._commands.holders(self._ours or {}) if any(self._foreign.values()) else {}

    def others(self) -> Mapping[str, Sequence[str]]:
        return self._others

    def _node(self, row: NodeRow) -> Node:
        return self._offer(
            row.node,
            gpu=self._catalog_gpu(row.gpus.kind),
            gpus=row.gpus.total,
            foreign=self._foreign[row.node],
            ours=self._on[row.node],
            rack=self._rack(row.node),
        )

    def _catalog_gpu(self, kind: str) -> str:
        return catalog_name(self._options.gpu_types.get(kind) or kind or self._options.gpu or "gpu")

    def _is_open(self, row: NodeRow) -> bool:
        said = why_strange(row.node, row.gpus.total)
        closed = row.states & look.CLOSED
        if "reserved" in row.states and not self._options.reservation:
            closed |= {"reserved"}
        if closed:
            words = "+".join(sorted(row.states))
            said = say(
                "slurm.node_closed", node=row.node, state=verbatim(words), reason=verbatim(row.reason or "-")
            )
        if said is not None:
            self._closed[row.node] = said
        return said is None

    def _rack(self, node: str) -> str:
        asked, racks = self._racks
        if self._clock() - asked > RACKS_S:
            racks = self._commands.racks()
            self._racks = (self._clock(), racks)
        return racks.get(node, "")

    def _poll(self) -> dict[str, list[JobRow]]:
        """Our jobs by lease, the one that runs it first."""
        jobs: dict[str, list[JobRow]] = {}
        ours: dict[str, JobRow] = {}
        for row in self._commands.jobs(self._prefix):
            lease = row.name.removeprefix(self._prefix)
            if not self._tenants.is_owner(self._root / Path(lease).name, row.uid):
                continue  # a tenant named its own job like another's lease
            jobs.setdefault(lease, []).append(row)
            if row.state in HOLDING:
                ours[row.number] = row
        self._ours, self._on = ours, _gpus_on(ours.values())
        return jobs

    # -- start -------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[Start]) -> Failures:
        """If Slurm has a job for the lease, it has started, even if we died before recording that."""
        if not starts:
            return {}
        known, self._jobs = self._poll(), None
        begin = lambda start: self._start(start, known.get(start.lease, []))  # noqa: E731
        self._ours = None  # a job that starts now is not a stranger's at the next look
        with ThreadPoolExecutor(SUBMITS_AT_ONCE) as pool:
            return each_lease(begin, {each.lease: each for each in starts}, pool.map)

    def _start(self, start: Start, known: Sequence[JobRow]) -> None:
        folder = self._folder(start.lease)
        self._parts[start.lease] = start.parts
        with (
            failing("adapters.cannot_start_in", lease=start.lease, folder=folder),
            self._as_tenant(start.lease),
        ):
            begun = any((folder / name).exists() for name in ("submitted.json", "won", "stop.json"))
        if begun:
            return
        if known:
            self._write_submitted(folder, start, _base(known[0].job))
            return
        if start.job.gpu_milli < WHOLE_GPU:
            raise CannotStart(say("slurm.no_shares", site=self.site))
        rows = [self._rows.get(node) for node, _ in start.parts]
        if any(row is None for row in rows):
            raise WorldFailed(say("slurm.node_unknown", node=", ".join(node for node, _ in start.parts)))
        try:
            self._prepare(folder, start)
            job = self._submit(folder, start, kind="" if rows[0] is None else rows[0].gpus.kind)
        except (CannotStart, OSError) as error:
            with self._as_tenant(start.lease):
                for order in folder.glob("ranks/*/order.json"):  # its environment may hold secrets
                    with contextlib.suppress(OSError):
                        order.unlink()
            if isinstance(error, OSError):
                said = say(
                    "adapters.cannot_start_in", lease=start.lease, folder=folder, error=os_words(error)
                )
                raise WorldFailed(said) from error
            raise
        self._write_submitted(folder, start, job)

    def _prepare(self, folder: Path, start: Start) -> None:
        names = [node for node, _ in start.parts]
        user, speed = self._user_of(start.job), start.job.rate(self._gpu_at(names[0]))
        give_folder(folder, user)
        if user is not None:
            give_folder(self.checkpoint_folder(start.job.job), user)
        code = self._code_of(start.job)
        if code is not None and user is not None:
            code = self._tenants.copy_code(code, folder)
        row = self._rows[names[0]]
        gang = {
            "BRIMFUL_WORLD_SIZE": str(len(names)),
            "MASTER_ADDR": row.address or names[0],
            **({"WORLD_SIZE": str(len(names))} if len(names) > 1 else {}),
        }
        orders = [
            {
                **self._order(start, folder / "ranks" / str(rank), user=user, speed=speed, env=gang),
                "ranks": [{"BRIMFUL_NODE": node, **rank_env(rank, len(names))}],
                "gang": str(folder),
                "rank": rank,
                "readies": rank == 0,
                "hears_engine": True,
                "code": code,
            }
            for rank, node in enumerate(names)
        ]
        with self._as_tenant(start.lease):
            write_json(folder / "gang.json", {"nodes": names})
            for rank, order in enumerate(orders):
                own = folder / "ranks" / str(rank)
                own.mkdir(parents=True, exist_ok=True, mode=0o700)
                reserve(own / "ended.json")
                write_json(own / "order.json", order)

    def _submit(self, folder: Path, start: Start, *, kind: str) -> str:
        those = batch.components(start.parts)
        name = f"{self._prefix}{start.lease}"
        python = self._options.python or sys.executable
        script = batch.script(folder, nodes=len(start.parts), count=len(those), python=python)
        user = self._tenants.users.get(start.job.tenant)
        flags = batch.flags(name, folder, those, self._options, kind=kind, user=user)
        return self._commands.submit(flags, script)

    def _write_submitted(self, folder: Path, start: Start, job: str) -> None:
        body = {"job": job, "at_s": int(time.time()), "nodes": [node for node, _ in start.parts]}
        body["gpus"] = [len(gpus) for _, gpus in start.parts]
        with (
            failing("adapters.cannot_start_in", lease=start.lease, folder=folder),
            self._as_tenant(start.lease),
        ):
            write_json(folder / "submitted.json", body)

    # -- stop --------------------------------------------------------------------------------------------

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        """Written to disk first: runners see it within a second, even while the controller is down."""
        new: set[str] = set()

        def ask(lease: str) -> None:
            if self._write_stop(lease, grace_s=grace_s):
                new.add(lease)

        failed = each_lease(ask, {lease: lease for lease in leases})
        known, self._jobs = self._poll(), None
        ids: list[str] = []
        late: list[str] = []
        for lease in leases:
            rows = [row for row in known.get(lease, []) if row.state in look.LIVING]
            its = {_base(row.job) for row in rows}
            is_late = self._clock() > self._late.setdefault(lease, self._clock() + grace_s + LATE_S)
            if lease in new or any(row.state in look.WAITING for row in rows):
                ids.extend(its)
            elif is_late or lease in failed:  # a full or read-only folder must not prevent a stop
                late.extend(_base(row.job) for row in rows if row.state != "COMPLETING")
        if ids:
            self._commands.cancel_pending(ids)
            self._commands.wake(ids)
        if late:
            self._commands.end(late)
        return failed

    def _write_stop(self, lease: str, *, grace_s: int) -> bool:
        """Also if nothing has started: a job that comes too late finds this. Returns whether it is new."""
        folder = self._folder(lease)
        stop = {"grace_s": grace_s, "deadline_s": int(time.time()) + grace_s}
        with failing("adapters.cannot_ask_stop", lease=lease, folder=folder):
            folder.mkdir(exist_ok=True, mode=0o700)
        with failing("adapters.cannot_ask_stop", lease=lease, folder=folder), self._as_tenant(lease):
            if (folder / "stop.json").exists():
                return False
            for rank in self._ranks(folder):  # first those that wait for it, so that all know their grace
                write_json(rank / "stop.json", stop)
            write_json(folder / "stop.json", stop)
        return True

    def warn(self, lease: str, *, until_s: int | None) -> None:
        folder = self._folder(lease)
        with self._as_tenant(lease), failing("adapters.cannot_give_notice", lease=lease, folder=folder):
            if (folder / "stop.json").exists():
                return
            for rank in self._ranks(folder):
                path, notice = rank / "notice.json", {"deadline_s": until_s, "may_stay": True}
                if until_s is None:
                    path.unlink(missing_ok=True)
                elif facts(path) != notice:
                    write_json(path, notice, mode=NOTICE_MODE)

    # -- observe -----------------------------------------------------------------------------------------

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        jobs, self._jobs = self._poll() if self._jobs is None else self._jobs, None
        forgotten: list[str] = []

        def look_at(lease: str) -> list[Observation]:
            with self._as_tenant(lease):
                return list(self._look(lease, jobs.get(lease, []), forgotten))

        seen = self._look_at_each(leases, look_at, then=lambda: self._remembered(forgotten))
        self._hand_back(leases, jobs)
        kept = len(self._told) + len(self._pending) + len(self._late) + len(self._parts)
        if kept > 3 * len(leases) + 100:
            self._parts = {lease: parts for lease, parts in self._parts.items() if lease in leases}
            self._told = {lease: rows for lease, rows in self._told.items() if lease in leases}
            self._pending = {lease: at for lease, at in self._pending.items() if lease in leases}
            self._late = {lease: at for lease, at in self._late.items() if lease in leases}
        return seen

    def _look(self, lease: str, rows: list[JobRow], forgotten: list[str]) -> Iterator[Observation]:
        folder = self._folder(lease)
        if self._notices:
            self._hold_taken(folder / TAKEN, {node for row in rows for node in row.nodes})
        if rows and self._told.get(lease) == rows and rows[0].state in ("RUNNING", "PENDING"):
            return  # nothing new: saves opening a file for each of 2,000 leases
        submitted = facts(folder / "submitted.json")
        if not rows and submitted is None and not (folder / "won").exists():
            yield Observation(lease=lease, state="absent")
            return
        row = _winner(folder, rows)
        if row is None:
            forgotten.append(lease)
            return
        if row.state in look.WAITING:
            self._pending.setdefault(lease, self._clock())
            self._told[lease] = rows
            yield look.waiting(lease, row.reason if row.state == "PENDING" else "")
            return
        self._pending.pop(lease, None)
        ranks = look.ranks_of(folder, self._count(folder, submitted))
        span = _span([each for each in rows if _base(each.job) == _base(row.job)])
        if row.state not in look.LIVING:
            yield look.ended(lease, folder, ranks, row.state, span, skew_s=self._skew_s)
        elif row.state == "COMPLETING" and self._is_clear(folder, ranks):
            yield look.ended(lease, folder, ranks, "", span, skew_s=self._skew_s)
        elif look.has_begun(ranks) or self._is_silent(span):
            self._told[lease] = rows
            yield look.running(lease, ranks, span, skew_s=self._skew_s)
        else:
            yield look.waiting(lease, "")

    def _is_silent(self, span: Span) -> bool:
        """A tenant whose runner never reports its start would hold GPUs unbilled until it ends."""
        began_s = time.time() if span.began_s is None else span.began_s - self._skew_s
        return bool(self._tenants.users) and time.time() - began_s > SILENT_S

    def _hold_taken(self, taken: Path, own: Collection[str]) -> None:
        """Only runners hear that a cloud takes a node back while it still runs; Slurm keeps offering it.

        `own`: the lease's nodes. Its tenant could write any node and any date there.
        """
        with contextlib.suppress(FileNotFoundError):
            age_s = max(0.0, time.time() - taken.lstat().st_mtime)
            until = self._clock() + TAKEN_S - age_s
            said = read_plain(taken, below=taken.parent, most_bytes=NOTE_BYTES).decode(errors="replace")
            for node in {*said.split()} & {*own}:
                self._held[node] = max(self._held.get(node, 0.0), until)

    def _is_clear(self, folder: Path, ranks: Sequence[look.Rank]) -> bool:
        """Whether its runners alone say how it ended: one told to end, not by us, was evicted by Slurm."""
        if not all(rank.ended for rank in ranks):
            return False
        return (
            (folder / "stop.json").exists()
            or not any(map(look.is_told, ranks))
            or (folder / "failed").exists()
        )

    def _count(self, folder: Path, submitted: Mapping[str, Any] | None) -> int:
        nodes = (submitted or facts(folder / "gang.json") or {}).get("nodes", [])
        return max(1, min(len(nodes), MOST_RANKS)) if isinstance(nodes, list) else 1

    def _ranks(self, folder: Path) -> list[Path]:
        """Ranks that have a folder; a tenant may have put any number of others beside them."""
        places = (folder / "ranks" / str(rank) for rank in range(self._count(folder, None)))
        return [place for place in places if place.is_dir()]

    def _remembered(self, leases: Sequence[str]) -> Iterator[tuple[str, LookAt]]:
        """For leases that the controller has forgotten: what their runners and accounting kept."""
        ids = {}
        for lease in leases:
            with self._as_tenant(lease):
                said = str((facts(self._folder(lease) / "submitted.json") or {}).get("job", ""))
            ids[lease] = said if NUMBER.fullmatch(said) else ""
        ends = self._kept_ends([job for job in ids.values() if job])

        def look_at(lease: str) -> list[Observation]:
            folder, rows = self._folder(lease), ends.get((ids[lease], lease), [])
            # The part of a heterogeneous job that did not complete says why.
            state = next((row.state for row in rows if row.state != "COMPLETED"), "COMPLETED" if rows else "")
            with self._as_tenant(lease):
                ranks = look.ranks_of(folder, self._count(folder, None))
                return [look.ended(lease, folder, ranks, state, _span(rows), skew_s=self._skew_s)]

        return ((lease, look_at) for lease in ids)

    def _kept_ends(self, jobs: Sequence[str]) -> dict[tuple[str, str], list[EndRow]]:
        """By job and lease: a controller that lost its memory reuses numbers for other jobs."""
        found: dict[tuple[str, str], list[EndRow]] = {}
        for row in self._commands.ends(jobs) if jobs else []:
            found.setdefault((_base(row.job), row.name.removeprefix(self._prefix)), []).append(row)
        return found

    def _hand_back(self, leases: Collection[str], jobs: Mapping[str, Sequence[JobRow]]) -> None:
        """Leases that Slurm keeps waiting behind others: other GPUs may be free elsewhere."""
        now, ids = self._clock(), []
        for lease in leases:
            since, rows = self._pending.get(lease), jobs.get(lease)
            if since is None or not rows or any(row.state != "PENDING" for row in rows):
                continue
            folder = self._folder(lease)
            parts = self._parts.get(lease, ())
            taken = self._are_taken(parts)
            if not taken and now - since < self._options.pending_s:
                continue
            with contextlib.suppress(OSError), self._as_tenant(lease):
                write_json(folder / "handed_back.json", {"reason": rows[0].reason})
                ids.append(_base(rows[0].job))
            if not taken:  # for a reason that we cannot see
                self._held |= dict.fromkeys((node for node, _ in parts), now + HELD_S)
        if ids:
            self._commands.cancel_pending(ids)

    def _are_taken(self, parts: Parts) -> bool:
        """Whether others hold the GPUs that it waits for."""
        rows = ((self._rows.get(node), len(gpus)) for node, gpus in parts)
        return any(row and gpus > row.gpus.total - self._least[row.node] for row, gpus in rows)

    def seen_jobs(self) -> list[SeenJob]:
        """Array tasks and heterogeneous parts count as separate jobs."""
        return [
            SeenJob(
                job=f"{row.job}-{row.submitted_s}",  # a controller that lost its memory reuses numbers
                user=row.user,
                gpus=row.gpus.total * row.nodes,
                nodes=row.nodes,
                gpu=self._catalog_gpu(row.gpus.kind) if row.gpus.kind else "",
                submitted_s=row.submitted_s,
                started_s=row.started_s,
                ended_s=row.ended_s,
                places=row.places,
                outcome=look.OUTCOMES.get(row.state, "unknown"),
                held=row.state == "PENDING" and row.reason.startswith(look.HELD),
            )
            for row in self._commands.everybodys()
        ]

    # -- besides -----------------------------------------------------------------------------------------

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        with failing("adapters.cannot_read_log", lease=lease), self._as_tenant(lease):
            place = self._folder(lease) / "ranks" / str(rank)
            return (
                logs.read(place / "log", offset=offset, limit=limit)
                if place.is_dir()
                else LogPiece(0, b"", 0)
            )

    def sample(self, lease: str) -> bytes | None:
        place = self._folder(lease) / "ranks" / "0"
        with self._as_tenant(lease):
            return samples.read_sample(place) if place.is_dir() else None


def _base(job: str) -> str:
    """The number of the whole job, of heterogeneous parts such as 7+0 and 7+1."""
    return job.partition("+")[0]


def _gpus_on(rows: Iterable[JobRow]) -> Counter[str]:
    on: Counter[str] = Counter()
    for row in rows:
        on.update(dict.fromkeys(row.nodes, row.gpus_per_node))
    return on


def _span(rows: Sequence[JobRow | EndRow]) -> Span:
    """Over all parts of a job."""
    began = [row.span.began_s for row in rows if row.span.began_s is not None]
    ended = [row.span.ended_s for row in rows if row.span.ended_s is not None]
    return Span(min(began, default=None), max(ended, default=None))


def _winner(folder: Path, rows: Sequence[JobRow]) -> JobRow | None:
    """Of several jobs for one lease, the one that runs it; of its components, a living one."""
    try:
        said = read_plain(folder / "won" / "id", below=folder, most_bytes=NOTE_BYTES)
        won = said.decode(errors="replace").strip()
    except OSError:
        won = ""
    own = [row for row in rows if _base(row.job) == won] if won else list(rows)
    return next((row for row in own if row.state in look.LIVING), own[0] if own else None)
