"""Which jobs a caller may see, and which it may change."""

from __future__ import annotations

from brimful.adapters.code import CodeStore
from brimful.errors import NotFound
from brimful.fleet.job import Job
from brimful.fleet.state import JobState
from brimful.language import Quoted, say
from brimful.server.api.code import no_code
from brimful.server.auth import Principal, forbidden
from brimful.server.service.reader import Reader


def job_for(reader: Reader, who: Principal, name: str) -> JobState:
    """The job, if the caller may see it."""
    _see(reader, who, name)
    return reader.job(name)


def _see(reader: Reader, who: Principal, name: str) -> Job:
    """The job, or the array's. Another tenant's job gets exactly the same answer as a missing one."""
    array = reader.array(name)
    job = reader.job(name).job if array is None else array.job
    if not who.sees(job.tenant):
        raise NotFound(say("server.no_job", name=Quoted(name[:100])))
    return job


def own_job(reader: Reader, who: Principal, name: str) -> None:
    """Only its submitter or an admin of its tenant may change it."""
    job = _see(reader, who, name)
    # A job from before there were users belongs to its token.
    is_own = job.user == who.name if job.user else job.submitter == who.token
    if not who.may("admin", job.tenant) and not (is_own and who.may("submitter", job.tenant)):
        raise forbidden(who, "admin")


def check_named(reader: Reader, code: CodeStore | None, who: Principal, job: Job) -> None:
    """The jobs it names exist and the caller may see them."""
    if job.code and (code is None or code.size(job.tenant, job.code) is None):
        raise no_code(job.code)
    for name, _ in job.after:
        _see(reader, who, name)
