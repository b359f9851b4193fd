"""Views that are created, steered and ended over tables that change, and what is known of each (I1, I4, I6, I9).

Whoever asks for a view is the only one who alters it, so that what was acknowledged has to be what is shown, through
any recovery. A view that was cancelled or dropped has to be gone, whatever became of the call that creates it.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

from tests.support.persistent_client import Abandoned, PersistentClient
from tests.support.service import ProblemError

STRATEGIES: Final[Mapping[str, Mapping[str, str]]] = {
    "Snapshot": {},
    "Snapshot on Spark": {"stage_engine": "spark"},
    "Arrangement": {"streaming_use_snapshot_backfill": "false"},
    "NoShuffle": {"streaming_use_snapshot_backfill": "false", "streaming_use_arrangement_backfill": "false"},
}
PLAIN_STRATEGIES: Final = ("Snapshot", "Arrangement", "NoShuffle")
STAGED_STRATEGIES: Final = ("Snapshot", "Snapshot on Spark", "Arrangement")
SELECTS: Final = (
    "SELECT id, v, note FROM {}",
    "SELECT id, v + 1 AS v, note FROM {} WHERE v % 3 <> 0",
    "SELECT id, v, upper(note) AS note FROM {} WHERE id % 7 <> 2",
)
"""The first two are pushed down, the last goes through Spark. All give the columns they read: any may read any."""
STAGED: Final = (
    "SELECT a.id, a.v, b.note FROM {0} a JOIN {1} b ON b.id = a.id",
    "SELECT a.id, coalesce(b.v, 0) AS v, a.note FROM {0} a LEFT JOIN {1} b ON b.id = a.id AND b.v > 10",
    "SELECT v::bigint AS id, count(*)::integer AS v, sum(id)::text AS note FROM {0} GROUP BY 1",
    "SELECT a.v::bigint AS id, count(b.id)::integer AS v, max(b.note) AS note"  # noqa: ISC004 - one text
    " FROM {0} a JOIN {1} b ON b.id = a.id GROUP BY a.v HAVING count(*) > 1",
    "SELECT DISTINCT ON (v) id, v, note FROM {0} ORDER BY v, id, note",
    "SELECT id, v, note FROM {0} a WHERE EXISTS (SELECT FROM {1} b WHERE b.id = a.id + 1)",
    "SELECT id, v, note FROM {0} WHERE v > (SELECT avg(v) FROM {1})",
    "SELECT id, v, note FROM {0} EXCEPT SELECT id, v, note FROM {1}",
    "SELECT id, v, note FROM {0} ORDER BY v DESC, id, note LIMIT 20",
)
"""Queries with stages: joins, sums, parts, subqueries, sets. Each gives the columns it reads."""
DEPTH_MAX: Final = 3
KEPT_MAX: Final = 8
"""How many views there may be: each costs every epoch a Spark job for every scan."""
UNKNOWN: Final = "unknown"
BEING_CREATED: Final = {"Initial", "Queued", "Creating"}


@dataclass(eq=False)
class View:
    """A view that was asked for. `asked` is the limit to begin with, `limit` what was acknowledged last for `job`: None
    is no limit, and UNKNOWN may be anything. `by_hand` says that its scans were started whatever its order says.
    """

    name: str
    strategy: str
    query: str
    reads: Sequence[str]
    order: Sequence[tuple[str, str]]
    background: bool
    asked: object
    depth: int
    job: int | None = None
    limit: object = None
    doomed: threading.Event = field(default_factory=threading.Event)
    call: "Future[Any] | None" = None
    created: bool = False
    by_hand: bool = False

    @property
    def create(self) -> str:
        limit = "" if self.asked is None else f"backfill_rate_limit = {self.asked!r}"
        edges = ", ".join(f"{before} -> {after}" for before, after in self.order)
        options = ", ".join(filter(None, [limit, f"backfill_order = FIXED({edges})" if edges else ""]))
        given = f" WITH ({options})" if options else ""
        return f"CREATE MATERIALIZED VIEW IF NOT EXISTS {self.name}{given} AS {self.query}"

    @property
    def differing(self) -> str:
        """A query for the number of rows by which it differs from its query at one epoch."""
        return (
            f"select (select count(*) from ((table {self.name} except all ({self.query}))"
            f" union all (({self.query}) except all table {self.name})) d)"
        )


@dataclass
class Gallery:
    """All views there are, and those that may not be dropped just now because somebody works on or over them."""

    tables: Sequence[str]
    logical: Sequence[str]
    """Logical views, which no backfill order may name."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    views: dict[str, View] = field(default_factory=dict[str, View])
    held: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    refusals: Counter[str] = field(default_factory=Counter[str])
    deeds: Counter[str] = field(default_factory=Counter[str])
    """What was asked for and done, besides creating and dropping."""
    made: int = 0

    def plan(self, random: Random) -> View:
        """Think of a view; it and what it reads are held until `let_go`."""
        with self.lock:
            readable = [one.name for one in self.views.values() if one.created and one.depth < DEPTH_MAX]
            staged = random.random() < 0.4
            count = 2 if staged else random.choice((1, 1, 2, 2, 3))
            chosen = random.sample([*self.tables, *self.logical, *readable], count)
            ordered = not staged and random.random() < 0.6 and not set(chosen) & set(self.logical)
            query = random.choice(STAGED).format(*chosen) if staged else _union(random, chosen)
            self.made += 1
            # Names come again: those of views that are gone are free.
            name = next(name for n in range(99) if (name := f"view_{(self.made + n) % 20}") not in self.views)
            view = View(
                name=name,
                strategy=random.choice(STAGED_STRATEGIES if staged else PLAIN_STRATEGIES),
                query=query,
                reads=chosen,
                order=list(pairwise(chosen)) if ordered else [],
                background=random.random() < 0.7,
                asked=random.choice((None, 100, 300, "auto")),
                depth=1 + max(self.views[one].depth if one in self.views else 0 for one in chosen),
            )
            self.views[name] = view
            self.held.update([name, *chosen])
            return view

    def let_go(self, view: View) -> None:
        with self.lock:
            self.held.subtract([view.name, *view.reads])

    def forget(self, views: Sequence[View], end: str) -> None:
        with self.lock:
            for view in views:
                del self.views[view.name]
                self.ends[view.strategy, end] += 1

    def doomed(self, random: Random) -> list[View]:
        """Return a view that nobody works on or over, with all that read it, if there are many and one is free."""
        with self.lock:
            if len(self.views) < KEPT_MAX:
                return []
            for view in random.sample(list(self.views.values()), len(self.views)):
                doomed = [view]
                for one in doomed:
                    doomed += [
                        other for other in self.views.values() if one.name in other.reads and other not in doomed
                    ]
                if all(one.created and not self.held[one.name] for one in doomed):
                    for one in doomed:
                        one.created = False
                    return doomed
            return []

    def created(self) -> list[View]:
        with self.lock:
            return [view for view in self.views.values() if view.created]


def _union(random: Random, chosen: Sequence[str]) -> str:
    return " UNION ALL ".join(random.choice(SELECTS).format(one) for one in chosen)


@dataclass
class User:
    """Asks for views, one after the other, and does to them what users do."""

    client: PersistentClient
    gallery: Gallery
    random: Random
    pool: ThreadPoolExecutor
    over: threading.Event

    def turn(self, _turn: int) -> None:
        """Live through one view, or drop one."""
        if doomed := self.gallery.doomed(self.random):
            self.drop(doomed)
            return
        view = self.gallery.plan(self.random)
        try:
            if not self.create(view):
                self._end(view, "refused")
                return
            for _ in range(self.random.choice((0, 2, 4, 6))):
                self.steer(view)
            if self.random.random() < 0.4:
                self.cancel(view)
            else:
                self.keep(view, seconds=60)
        finally:
            self.gallery.let_go(view)

    def create(self, view: View) -> bool:
        """Ask for a view; return whether it was not refused."""
        session = {**STRATEGIES[view.strategy], "background_ddl": str(view.background).lower()}
        if view.strategy != "NoShuffle":
            session["streaming_parallelism"] = str(self.random.choice((1, 2, 3)))
        view.call = self.pool.submit(self.client.run, view.create, unless=view.doomed.is_set, **session)
        if view.background:
            return self._succeeds(view)
        while not view.call.done() and self._job(view) is None:
            wait([view.call], timeout=0.2)
        return not view.call.done() or self._succeeds(view)

    def steer(self, view: View) -> None:
        """Look at a view, and do one of the things that can be done to it while it is created."""
        self.over.wait(self.random.uniform(0.1, 2))
        job = self._job(view)
        if job is None or not self._check(view, job):
            return
        asked = self.random.choice((None, 50, 200, 400, "auto"))
        parallelism = self.random.choice((1, 2, 3, "adaptive"))
        match self.random.randrange(9):
            case 0 | 1 | 2:
                self._limit(view, "PATCH", f"/v1/jobs/{job}", {"backfill_rate_limit": asked}, asked)
            case 3:
                self._pause(view, job, asked or 300)
            case 4 | 5:
                which = self.random.choice(("parallelism", "backfill_parallelism"))
                self._asks("PATCH", f"/v1/jobs/{job}", {which: parallelism})
            case 6:
                view.by_hand = True
                self._asks("POST", f"/v1/jobs/{job}/start-backfill")
            case 7:
                self._disturb()
            case _:
                verified = self._asks("POST", f"/v1/jobs/{job}/verify")
                assert verified is None or verified["equal"], (view, verified)

    def cancel(self, view: View) -> None:
        """End a view in one of the ways there are, whatever state it is in; nothing creates it again afterwards."""
        assert view.call is not None
        self.over.wait(self.random.uniform(0, 5))
        view.doomed.set()
        how = self.random.choice(("CANCEL JOBS", "POST", "DROP"))
        while True:
            if how == "DROP":
                self._asks(*_sql(f"DROP MATERIALIZED VIEW IF EXISTS {view.name}"))
            elif (job := self._job(view)) is not None:
                self._asks(*(("POST", f"/v1/jobs/{job}/cancel", None) if how == "POST" else _sql(f"CANCEL JOBS {job}")))
            # A call that was under way may have created it since.
            if wait([view.call], timeout=0.5).done:
                break
        with suppress(Abandoned, ProblemError):
            view.call.result()
        self._end(view, "dropped while created" if how == "DROP" else "cancelled")

    def keep(self, view: View, *, seconds: float) -> None:
        """Lift the view's limit and wait until it is created, though not for ever."""
        assert view.call is not None
        if (job := self._job(view)) is not None:
            self._limit(view, "PATCH", f"/v1/jobs/{job}", {"backfill_rate_limit": None}, None)
        for _ in range(int(seconds * 2)):
            if view.call.done():
                view.call.result()
            if view.call.done() and (job := self._job(view)) is not None and self._state(job) == "Created":
                ((differing,),) = self.client.select(view.differing)
                assert differing == 0, (view, differing)
                view.created = True
                return
            if self.over.wait(0.5):
                return

    def drop(self, views: Sequence[View]) -> None:
        """Drop a created view with all that read it."""
        ((differing,),) = self.client.select(views[0].differing)
        assert differing == 0, (views[0], differing)
        cascade = " CASCADE" if len(views) > 1 else ""
        self.client.run(f"DROP MATERIALIZED VIEW IF EXISTS {views[0].name}{cascade}")
        self.gallery.forget(views, "created, then dropped")

    def _end(self, view: View, end: str) -> None:
        """Nothing creates it any more, so that it is gone for good."""
        self.client.run(f"DROP MATERIALIZED VIEW IF EXISTS {view.name} CASCADE")
        self.gallery.forget([view], end)

    def _succeeds(self, view: View) -> bool:
        assert view.call is not None
        try:
            view.call.result()
        except ProblemError as error:
            self._refused(error)
            return False
        return True

    def _job(self, view: View) -> int | None:
        """Return the job of a view's name; None while there is none."""
        try:
            return int(self.client.get(f"/v1/relations/{view.name}")["job"])
        except ProblemError as error:
            if error.status != 404:
                raise
            return None

    def _rows(self, job: int) -> dict[int, int]:
        """Return the rows of history that the scans of a job have read; nothing once it is not created any more."""
        detail = self.client.get(f"/v1/jobs/{job}")
        if detail["job"]["state"] not in BEING_CREATED:
            return {}
        return {one["id"]: one["rows"] for one in detail["fragments"] if one["scan_type"]}

    def _state(self, job: int) -> str:
        return self.client.get(f"/v1/jobs/{job}")["job"]["state"]

    def _check(self, view: View, job: int) -> bool:
        """Return whether a view is being created; what is shown of it is what was acknowledged (I4)."""
        detail = self.client.get(f"/v1/jobs/{job}")
        assert detail["job"]["state"] != "Failed", detail["job"]
        if view.job != job:
            # A recovery within its first seconds has cancelled a foreground job, and its call was repeated.
            view.job, view.limit, view.by_hand = job, view.asked, False
        if detail["job"]["state"] not in BEING_CREATED:
            return False
        scans = [one for one in detail["fragments"] if one["scan_type"]]
        if view.limit not in {"auto", UNKNOWN}:
            assert {one["rate_limit"] for one in scans} <= {view.limit}, (view, scans)
        if not view.by_hand:
            read = {one["upstream"]: one for one in scans}
            for before, after in view.order:
                assert read[before]["finished"] or not read[after]["rows"], (view, scans)
        return True

    def _disturb(self) -> None:
        """Do something that concerns every view."""
        if self.random.random() < 0.5:
            self.client.run("RECOVER")
        else:
            self._asks("POST", "/v1/mutations?wait=applied", {"type": "pause"})
            self.over.wait(self.random.uniform(0.1, 3))
            self._asks("POST", "/v1/mutations?wait=applied", {"type": "resume"})

    def _pause(self, view: View, job: int, again: object) -> None:
        """Pause a job and resume it: no row of history is read in between (I4)."""
        self._limit(view, "POST", f"/v1/jobs/{job}/pause", None, 0)
        if view.limit == 0:
            before = self._rows(job)
            self.over.wait(self.random.uniform(0.1, 5))
            assert self._rows(job) in ({}, before), view
        self._limit(view, "POST", f"/v1/jobs/{job}/resume", {"backfill_rate_limit": again}, again)

    def _limit(self, view: View, method: str, path: str, body: dict[str, Any] | None, limit: object) -> None:
        view.limit = UNKNOWN
        if self._asks(method, path, body) is not None:
            view.limit = limit

    def _asks(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer, None where it was refused, as the job's state or strategy may demand."""
        try:
            answer = self.client.call(method, path, body)
        except ProblemError as error:
            self._refused(error)
            return None
        self.gallery.deeds[", ".join(body) if method == "PATCH" and body else path.rpartition("/")[2]] += 1
        return answer

    def _refused(self, error: ProblemError) -> None:
        assert error.status < 500, error
        assert "could not be created" not in error.problem["detail"], error
        words = "".join("#" if letter.isdigit() else letter for letter in error.problem["detail"])
        self.gallery.refusals[f"{error.status} {words}"] += 1


def _sql(text: str) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/sql", {"sql": text, "session": {}}
