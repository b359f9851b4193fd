"""A drawn world becomes views that Postgres answers, and those are lived through; what it does not answer must fail.

An expression that is refused counts as that. One that Postgres answers on every row that a view ever meets becomes an
output of it. One that fails on some rows must fail on these in a view as well, and becomes an output of another view
that leaves those rows out.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.domain.errors import Refused
from service.protocol.ids import Generation
from tests.differential.excluded import EXCLUDED, FAILURES, TAMED
from tests.differential.grammar import TEMPLATES, without
from tests.differential.run import Difference, Planned, Run
from tests.differential.worlds import Change, Language, View, World
from tests.support.postgres import fresh_database
from tests.support.state_store import Store, prepared_store
from workers.runners.failure import JobFailedError

ALL: Final = Language(TEMPLATES)
KNOWN: Final = Language(without(EXCLUDED), TAMED)
"""All that is not known to differ."""
GUARD: Final = "id not in "
SURVIVORS_MIN: Final = 4
LAZY: Final = ("case ", "coalesce(", " and ", " or ")
"""Of these Spark leaves out what cannot change the value, and with it what Postgres fails on."""
NULL_SEEN: Final = ("nullif(", " is ")
"""With both, a value may tell that something is NULL beside which the rest was left out."""
FAILING_MAX: Final = 12
"""How many expressions of a world are tried on rows on which they must fail."""


@dataclass
class Findings:
    """What came of a world, or of several."""

    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    """Reasons, and how often."""
    failing: int = 0
    """Cases that must fail, and do."""
    documented: int = 0
    """Cases that fail although Postgres answers them, as is documented, and are left out."""
    lazy: int = 0
    """Cases that should fail, and are NULL: an operand beside a NULL was not computed."""
    compared: int = 0
    """Cases that were compared over rows."""
    empty: int = 0
    """Cases of views that never had a row."""
    live: int = 0
    used: Counter[str] = field(default_factory=Counter[str])
    strategies: Counter[str] = field(default_factory=Counter[str])
    pushed: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])

    def add(self, other: "Findings") -> None:
        """Take over what came of another world."""
        for name in ("cases", "failing", "documented", "lazy", "compared", "empty", "live", "pushed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused += other.refused
        self.used += other.used
        self.strategies += other.strategies
        self.differences += other.differences

    def lines(self) -> list[str]:
        """Return the mix, for people."""
        refused = self.refused.total()
        return [
            f"{self.cases} cases of {len(self.used)} templates: {self.compared} compared ({self.empty} over no row)",
            f"  {self.failing} must fail and do ({self.lazy} are NULL), {refused} refused",
            f"  {self.documented} fail as documented",
            f"  {self.live} epochs with changes beside history; {self.pushed} views pushed down",
            f"  views by strategy: {dict(self.strategies)}",
            *(f"  refused {count} times: {reason}" for reason, count in self.refused.most_common(25)),
        ]


@dataclass
class _Examination:
    run: Run
    static: Run
    """Every state that a row of the world ever has, as a row."""
    findings: Findings
    must_fail: list[tuple[View, int]] = field(default_factory=list[tuple[View, int]])

    async def planned(self, view: View) -> list[Planned]:
        """Return the views that come of a drawn one."""
        predicate = view.predicate
        if predicate is not None:
            # As an output as well: of every row one sees there what it says.
            view = replace(view, outputs=(*view.outputs, predicate)) if view.used else view
            if not self._kept(view, predicate, replace(view, outputs=("1",))):
                predicate = None
        safe: list[str] = []
        guarded: list[str] = []
        bad: set[int] = set()
        for output in view.outputs:
            states = self._kept_on(replace(view, predicate=predicate), output)
            if states is None:
                continue
            if states and states != {0}:
                guarded, bad = [*guarded, output], bad | states
            elif not states:
                safe.append(output)
        views = [replace(view, outputs=tuple(safe), predicate=predicate)] if safe else []
        ids = {int(str(row["id"])) for number, row in enumerate(self.run.world.states(), 1) if number in bad}
        if guarded and len(ids) < len({row["id"] for row in self.run.world.states()}):
            listed = f"{GUARD}({', '.join(map(str, sorted(ids)))})"
            condition = listed if predicate is None else f"{predicate} and {listed}"
            views.append(replace(view, outputs=tuple(guarded), predicate=condition))
        return [planned for one in views for planned in self._created(one)]

    def _kept(self, view: View, predicate: str, alone: View) -> bool:
        self.findings.cases += 1
        if not self._accepted(replace(alone, predicate=predicate)):
            return False
        asked = self.run.oracle.ask(predicate)
        if asked.meaningless:
            self.findings.differences.append(Difference(view, f"accepted: {asked.meaningless}: {predicate}"))
        self.must_fail += [
            (replace(alone, predicate=f"{predicate} and id = {state}"), state) for state in list(asked.errors)[:1]
        ]
        # With hardly a row left the outputs would be compared on nothing.
        return not asked.meaningless and not asked.errors and self.run.oracle.survivors(predicate) >= SURVIVORS_MIN

    def _kept_on(self, view: View, output: str) -> set[int] | None:
        """Return the states on which an output fails, or None where it is refused or means nothing."""
        self.findings.cases += 1
        alone = replace(view, outputs=(output,))
        if not self._accepted(alone):
            return None
        asked = self.run.oracle.ask(output, view.predicate)
        if asked.meaningless:
            self.findings.differences.append(Difference(alone, f"accepted: {asked.meaningless}", 0))
            return None
        self.must_fail += [(replace(alone, predicate=f"id = {state}"), state) for state in list(asked.errors)[:1]]
        # A constant that fails does so whatever rows are left out.
        return {0} if asked.always else set(asked.errors)

    def _accepted(self, view: View) -> bool:
        try:
            self.run.bind(view)
        except Refused as refusal:
            self.findings.refused[str(refusal)[:90]] += 1
            return False
        return True

    def _created(self, view: View) -> list[Planned]:
        """Plan a view; outputs that Spark refuses to type although Postgres answers them are differences."""
        try:
            planned = self.run.plan(view)
        except (PySparkException, Refused) as error:
            if len(view.outputs) == 1:
                what = f"not created: {str(error).splitlines()[0][:200]}"
                # Spark folds what is constant before a row is read, also where the view would have none.
                states = len(self.run.world.states())
                constant = len(self.run.oracle.ask(view.outputs[0]).errors) == states
                if constant or _documented(what):
                    self.findings.documented += 1
                else:
                    self.findings.differences.append(Difference(view, what, 0))
                return []
            half = len(view.outputs) // 2
            parts = (replace(view, outputs=part) for part in (view.outputs[:half], view.outputs[half:]))
            kept = [one for part in parts for planned in self._created(part) for one in planned.view.outputs]
            return self._created(replace(view, outputs=tuple(kept))) if kept else []
        types = self.run.oracle.types(view.text)
        ours = [str(planned.relation.column(name).type).split("(")[0] for name in planned.names]
        for place, (wanted, found) in enumerate(zip(types[1:], ours[1:], strict=True)):
            if wanted != _SPELLED.get(found, found) and not (wanted == "numeric[]" and found.startswith("numeric")):
                self.findings.differences.append(Difference(view, "type", place, None, wanted, found))
        return [planned]

    async def failing(self) -> None:
        """Try what must fail."""
        must = [(view, state) for view, state in self.must_fail if not any(word in view.text for word in LAZY)]
        for view, state in must[:FAILING_MAX]:
            try:
                await self.static.alone(view)
            except (JobFailedError, PySparkException):
                self.findings.failing += 1
            except psycopg.Error as error:
                # Ours answered. Beside a NULL Spark does not compute what Postgres fails on.
                if self.static.value() is None or all(word in view.text for word in NULL_SEEN):
                    self.findings.lazy += 1
                    continue
                told = str(error).splitlines()[0]
                self.findings.differences.append(Difference(view, "does not fail", 0, state, told, self.static.value()))
            except Refused:
                self.findings.refused["refused where it must fail"] += 1
            else:
                self.findings.differences.append(Difference(view, "does not fail", 0, state))

    async def culprits(self, view: View, error: JobFailedError) -> list[Difference]:
        """Return which outputs of a view that failed do so over the states of the world."""
        found: list[Difference] = []
        if view.predicate is not None and GUARD in view.predicate:
            condition, _, listed = view.predicate.rpartition(GUARD)
            bad = {int(one) for one in listed.strip("()").split(", ")}
            keep = [n for n, row in enumerate(self.run.world.states(), 1) if int(str(row["id"])) not in bad]
            view = replace(view, predicate=f"{condition}id in ({', '.join(map(str, keep))})")
        for output in view.outputs:
            alone = replace(view, outputs=(output,))
            try:
                await self.static.alone(alone)
            except JobFailedError as failed:
                found.append(Difference(alone, f"fails: {failed.reason[:300]}", 0))
        return found or [Difference(view, f"fails: {str(error)[-2000:]}")]


_SPELLED: Final = {
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
}


async def examine(world: World, url: str, spark: SparkSession) -> Findings:
    """Live through a world in databases of its own; a view that fails is left out, and the others start again."""
    findings = Findings()
    dropped: set[str] = set()
    while True:
        with fresh_database(url) as database:
            async with prepared_store(database) as store:
                tried = Findings()
                again = await _lived(world, store, spark, tried, dropped)
        tried.differences = [*findings.differences, *tried.differences] if again else tried.differences
        if not again:
            tried.differences += findings.differences
            tried.documented += findings.documented
            return tried
        findings.documented += sum(_documented(one.what) for one in again)
        findings.differences += [one for one in again if not _documented(one.what)]


async def _lived(
    world: World, store: Store, spark: SparkSession, findings: Findings, dropped: set[str]
) -> list[Difference]:
    run, static = Run(store, spark, world), Run(store, spark, static_of(world), Generation(2))
    await run.prepare()
    try:
        examination = _Examination(run, static, findings)
        for view in world.views:
            kept = tuple(output for output in view.outputs if output not in dropped)
            for planned in await examination.planned(replace(view, outputs=kept)):
                if planned.view.text not in dropped:
                    await run.add(planned)
                    _count(findings, planned)
        try:
            await run.live_through()
        except JobFailedError as error:
            await static.prepare()
            job = next(job for job in run.jobs if job.plan.id == error.job)
            found = await examination.culprits(job.planned.view, error)
            dropped |= {one.view.outputs[0] for one in found if one.output is not None}
            dropped.add(job.planned.view.text)
            return found
        findings.live = run.live
        findings.differences += run.differences
        findings.empty = sum(
            len(job.planned.view.outputs) for job in run.jobs if not run.survived[job.planned.view.text]
        )
        await static.prepare()
        await examination.failing()
    finally:
        run.close()
        static.close()
    return []


def _documented(what: str) -> bool:
    """Whether a view failed as it is said to."""
    return what.startswith(("fails: ", "not created: ")) and any(reason in what for reason in FAILURES)


def _count(findings: Findings, planned: Planned) -> None:
    findings.compared += len(planned.view.outputs)
    findings.strategies[planned.view.strategy] += 1
    findings.pushed += planned.scan.query.pushdown is not None
    findings.used.update(planned.view.used)


def static_of(world: World) -> World:
    """Return a world in which every state of a row is a row of its own."""
    states = world.states()
    history = tuple(Change(None, {**row, "id": str(number)}) for number, row in enumerate(states, 1))
    return replace(world, key=(("id", False),), history=history, before=(), after=(), views=())


def shown(difference: Difference, world: World) -> str:
    """Return a difference for people."""
    view = difference.view
    lines = [f"seed {world.seed}: {difference.what}"]
    if difference.output is not None and difference.output < len(view.outputs):
        view = replace(view, outputs=(view.outputs[difference.output],), strategy=view.strategy)
    lines.append(f"  {view.text}   -- {view.strategy}")
    text = view.text
    if difference.row is not None:
        rows = [row for row in world.states() if row["id"] == str(difference.row)]
        named = {
            column.name: (row.get(column.name), column.type)
            for row in rows
            for column in world.columns
            if column.name in text
        }
        lines += [f"    {name} = {value!r} {kind}" for name, (value, kind) in named.items() if name != "id"]
    if difference.postgres is not None or difference.ours is not None:
        lines.append(f"    Postgres {difference.postgres!r}, ours {difference.ours!r}")
    return "\n".join(lines)


def totals(found: Iterable[Findings]) -> Findings:
    """Return what came of several worlds."""
    total = Findings()
    for one in found:
        total.add(one)
    return total
