"""What a form may do. Each action calls what the API calls for it, mostly the very function of the API's route.

Next: `service.api.routes.jobs`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from fastapi import Request
from pydantic import ValidationError

from service.api.calling import Call
from service.api.routes import graphs, mutations, parameters
from service.api.routes import jobs as jobs_api
from service.domain.errors import Invalid, MetaError, Unavailable
from service.domain.job import CREATING, JobState
from service.domain.roles import Role
from service.domain.words import UNLIMITED
from service.operations.commands import mutations as commands
from service.operations.jobs import lifecycle
from service.operations.sources import shown
from service.operations.statements import dispatch
from service.operations.status import listing
from service.operations.status.models import JobView
from service.operations.verify import worker_rpc
from service.operations.world import World
from service.pages.data.jobs import FILTERS
from service.pages.running import Verifications
from service.ports.audit import Asker
from service.protocol.ids import CommandId, FragmentId
from service.protocol.mutation import Pause, Resume
from service.protocol.quoting import quoted
from service.protocol.stage import Engine

APPLIED_WAIT: Final = timedelta(seconds=5)
"""How long a browser waits for a command to be applied. The command stays queued after it."""
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Act:
    """A form that was sent: its fields, and the parameters of its path."""

    request: Request
    world: World
    caller: Asker
    given: Mapping[str, str]
    form: Mapping[str, str]
    verifications: Verifications

    @property
    def call(self) -> Call:
        """The same as a call of the API without an idempotency key."""
        return Call(self.world, self.request, self.caller, None)


Do = Callable[[Act], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Action:
    """A form's address, the role that it needs, what it does, and where it leads. `do` returns what was done."""

    path: str
    role: Role
    do: Do
    to: str


def limit_of(text: str) -> jobs_api.Limited:
    """Return the limit of a field: `auto`, `unlimited`, or rows per second and actor. Raises Invalid."""
    typed = text.strip().lower()
    if typed not in {"auto", UNLIMITED} and not (typed.isascii() and typed.isdigit() and len(typed) <= 12):
        raise Invalid("a limit is a whole number of rows per second and actor, auto, or unlimited", pointer="limit")
    value = {"auto": "auto", UNLIMITED: None}.get(typed, typed)
    try:
        return jobs_api.Limited.model_validate(
            {"backfill_rate_limit": int(typed) if value == typed != "auto" else value}
        )
    except ValidationError as error:
        raise Invalid(f"limit: {error.errors()[0]['msg']}", pointer="limit") from None


async def _throttle(act: Act) -> str:
    body = limit_of(act.form.get("limit", ""))
    fragment = act.form.get("fragment", "")
    if fragment.isascii() and fragment.isdigit():
        answer = await jobs_api.throttle_fragment(FragmentId(int(fragment[:18])), body, act.call, "queued")
        return await _told(act, f"scan {fragment} limited to {act.form['limit']}", answer)
    altered = jobs_api.Altered.model_validate({"backfill_rate_limit": body.backfill_rate_limit})
    answer = await jobs_api.alter_job(act.given["job"], altered, act.call, "queued")
    return await _told(act, f"job {act.given['job']} limited to {act.form['limit']}", answer)


async def _pause(act: Act) -> str:
    return await _told(
        act, f"job {act.given['job']} paused", await jobs_api.pause_job(act.given["job"], act.call, "queued")
    )


async def _resume(act: Act) -> str:
    answer = await jobs_api.resume_job(act.given["job"], act.call, None, "queued")
    return await _told(act, f"job {act.given['job']} resumed", answer)


async def _start(act: Act) -> str:
    answer = await jobs_api.start_job_backfill(act.given["job"], act.call, "queued")
    return await _told(act, f"every scan of job {act.given['job']} started", answer)


async def _rescale(act: Act) -> str:
    text, field = (
        act.form.get("actors", "").strip(),
        "backfill_parallelism" if act.form.get("backfill") else "parallelism",
    )
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else text
    try:
        altered = jobs_api.Altered.model_validate({field: number})
    except ValidationError:
        raise Invalid("actors: a number, adaptive, bounded(n), ratio(r), or default", pointer="actors") from None
    answer = await jobs_api.alter_job(act.given["job"], altered, act.call, "queued")
    return await _told(act, f"job {act.given['job']} rescaled to {text}", answer)


async def _cancel(act: Act) -> str:
    _sure(act, "cancel the job")
    answer = await jobs_api.cancel_job(act.given["job"], act.call)
    return f"job {answer['cancelled']} was cancelled, and everything that it made is removed"


async def _verify(act: Act) -> str:
    job = await listing.job_called(act.world, act.given["job"])
    engine = act.form.get("engine", "")
    chosen = Engine(engine) if engine in set(Engine) else None
    verify = partial(worker_rpc.verify, act.world, job, chosen, asked_by=act.caller)
    begun = act.verifications.begin(job, act.caller.actor, act.world.clock.now(), verify)
    return "the verification has begun; its result appears below" if begun else "a verification of the job runs already"


async def _pause_all(act: Act) -> str:
    return await _told(act, "every backfill paused", await mutations.inject_mutation(Pause(), act.call, "queued"))


async def _resume_all(act: Act) -> str:
    return await _told(act, "every backfill resumed", await mutations.inject_mutation(Resume(), act.call, "queued"))


async def _recover(act: Act) -> str:
    _sure(act, "recover")
    return f"{(await graphs.recover(act.call))['reason']} was asked for; Barriers shows how far it is"


async def _flush(act: Act) -> str:
    return f"everything is published up to epoch {(await graphs.flush(act.call))['epoch']}"


async def _set(act: Act) -> str:
    name, value = act.form.get("name", ""), act.form.get("value", "")
    await parameters.alter_system_parameters({name: value}, act.call)
    return f"{name} was set"


async def _reload(act: Act) -> str:
    table = act.form.get("table", "")
    outcome = await dispatch.run(act.world, f"ALTER TABLE {quoted(table)} RELOAD", session={}, asked_by=act.caller)
    return "; ".join([f"{table} follows again, and its history is read", *outcome.notices])


async def _give_up(act: Act) -> str:
    _sure(act, "give up")
    cleanup = act.form.get("cleanup", "")
    await shown.give_up(act.world, int(cleanup) if cleanup.isascii() and cleanup.isdigit() else -1, asked_by=act.caller)
    return f"the clean-up {cleanup} was given up"


async def _act_on_all(act: Act) -> str:
    """Do one thing with every job of a filter. A job that refuses does not keep the others from it."""
    what = act.form.get("what", "")
    if what not in {*_ON_EACH, "cancel"}:
        raise Invalid("choose what to do", pointer="what")
    _sure(act, f"{what} every job that matches")
    if what == "throttle":
        limit_of(act.form.get("limit", ""))
    found = await _matching(act.world, act.form.get("state", ""))
    if what == "cancel":
        creating = [job.id for job in found if job.state in CREATING]
        caller = act.caller.saying(what, ", ".join(map(str, creating)))
        cancelled = await lifecycle.cancel(act.world, creating, asked_by=caller)
        return f"cancel: {len(cancelled)} jobs, of {len(found)} that match"
    done, refused = 0, list[str]()
    for job in found:
        try:
            # The address of this form names no job, so the audit trail has to be told of each.
            await _ON_EACH[what](replace(act, caller=act.caller.saying(what, str(job.id))), job)
        except MetaError as error:
            refused.append(f"{job.name}: {error.message}")
        else:
            done += 1
    text = f"{what}: {done} jobs"
    return text if not refused else f"{text}; {len(refused)} refused, the first because {refused[0]}"


async def _matching(world: World, chosen: str) -> list[JobView]:
    """Return the jobs of a filter that are not over. Raises Invalid."""
    if chosen not in FILTERS:
        raise Invalid("choose a filter", pointer="state")
    states = [one for one in FILTERS[chosen] if one not in _OVER]
    found, after = list[JobView](), 0
    while states:
        page = await listing.jobs(world, states, after=after, limit=_PAGE)
        found += page.items
        if page.next is None:
            break
        after = int(page.next)
    return found


_OVER: Final = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.DROPPING, JobState.DROPPED})


async def _throttle_one(act: Act, job: JobView) -> None:
    body = limit_of(act.form.get("limit", ""))
    altered = jobs_api.Altered.model_validate({"backfill_rate_limit": body.backfill_rate_limit})
    await jobs_api.alter_job(str(job.id), altered, act.call, "queued")


async def _pause_one(act: Act, job: JobView) -> None:
    await jobs_api.pause_job(str(job.id), act.call, "queued")


async def _resume_one(act: Act, job: JobView) -> None:
    await jobs_api.resume_job(str(job.id), act.call, None, "queued")


_ON_EACH: Final[Mapping[str, Callable[[Act, JobView], Awaitable[None]]]] = {
    "pause": _pause_one,
    "resume": _resume_one,
    "throttle": _throttle_one,
}


def _sure(act: Act, what: str) -> None:
    """Raise Invalid unless the form's box of confirmation is ticked."""
    if not act.form.get("sure"):
        raise Invalid(f"tick the box to {what}", pointer="sure")


async def _told(act: Act, text: str, answer: Mapping[str, Any]) -> str:
    """Return what a command did: at which epoch, or that it is still queued."""
    try:
        epoch = await commands.applied(act.world, CommandId(answer["command"]), limit=APPLIED_WAIT)
        told = f"{text} at epoch {epoch}"
    except Unavailable:
        told = f"{text}: queued as command {answer['command']}, until a barrier carries it"
    return f"{told}. {answer['notice']}" if answer.get("notice") else told


ACTIONS: Final = (
    Action("/jobs/act", Role.OPERATOR, _act_on_all, "/jobs"),
    Action("/jobs/{job}/throttle", Role.OPERATOR, _throttle, "/jobs/{job}"),
    Action("/jobs/{job}/pause", Role.OPERATOR, _pause, "/jobs/{job}"),
    Action("/jobs/{job}/resume", Role.OPERATOR, _resume, "/jobs/{job}"),
    Action("/jobs/{job}/start", Role.OPERATOR, _start, "/jobs/{job}"),
    Action("/jobs/{job}/rescale", Role.OPERATOR, _rescale, "/jobs/{job}"),
    Action("/jobs/{job}/cancel", Role.OPERATOR, _cancel, "/jobs"),
    Action("/jobs/{job}/verify", Role.OPERATOR, _verify, "/jobs/{job}"),
    Action("/pause", Role.OPERATOR, _pause_all, "/"),
    Action("/resume", Role.OPERATOR, _resume_all, "/"),
    Action("/flush", Role.OPERATOR, _flush, "/barriers"),
    Action("/recover", Role.ADMIN, _recover, "/barriers"),
    Action("/parameters", Role.ADMIN, _set, "/parameters"),
    Action("/sources/reload", Role.OPERATOR, _reload, "/sources"),
    Action("/sources/give-up", Role.ADMIN, _give_up, "/sources"),
)
