"""Sorts out the expressions of a world: what only the store computes, what must fail, and what is compared."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.domain.errors import Refused
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage_spark import spark_reason
from tests.differential.excluded import EXCLUDED, FAILURES, TAMED
from tests.differential.grammar import TEMPLATES, without
from tests.differential.oracle import Oracle, Rows
from tests.differential.worlds import Language, View, World
from tests.support.expressions import table
from tests.support.meaning import in_spark, planned, travelling
from tests.support.postgres import fresh_database
from workers.backfill.stages import BoundStage

ALL: Final = Language(TEMPLATES)
KNOWN: Final = Language(without(EXCLUDED), TAMED)
"""All that is not known to differ."""
SURVIVORS_MIN: Final = 4
LAZY: Final = ("case ", "coalesce(", " and ", " or ")
"""Of these Spark leaves out what cannot change the value, and with it what Postgres fails on."""
NULL_SEEN: Final = ("nullif(", " is ")
"""With both, a value may tell that something is NULL beside which the rest was left out."""
FAILING_MAX: Final = 12
"""How many expressions of a world are tried on rows on which they must fail."""
FAILED: Final = (PySparkException, Py4JError)


@dataclass(frozen=True)
class Difference:
    """A view that is not what its text says. `output` is the place of the one that differs, where one is known to."""

    view: View
    what: str
    output: int | None = None
    row: int | None = None
    postgres: str | None = None
    ours: str | None = None


@dataclass
class Findings:
    """What came of a world, or of several."""

    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    """Reasons, and how often."""
    stored: Counter[str] = field(default_factory=Counter[str])
    """Reasons why only the store computes a case."""
    failing: int = 0
    """Cases that must fail, and do."""
    documented: int = 0
    """Cases that fail although Postgres answers them, as is documented, and are left out."""
    lazy: int = 0
    """Cases that should fail, and are NULL: an operand beside a NULL was not computed."""
    by_spark: int = 0
    """Cases that Spark computed, and the store."""
    by_store: int = 0
    """Cases that the store computed alone."""
    used: Counter[str] = field(default_factory=Counter[str])
    differences: list[Difference] = field(default_factory=list[Difference])

    def add(self, other: "Findings") -> None:
        """Take over what came of another world."""
        for name, mine in vars(self).items():
            setattr(self, name, mine + getattr(other, name))

    def lines(self) -> list[str]:
        """Return the mix, for people."""
        return [
            f"{self.cases} cases of {len(self.used)} templates: {self.by_spark} by both engines",
            f"  {self.by_store} by the store alone, {self.refused.total()} refused",
            f"  {self.failing} must fail and do ({self.lazy} are NULL), {self.documented} fail as documented",
            *(f"  refused {count} times: {reason}" for reason, count in self.refused.most_common(25)),
            *(f"  the store alone {count} times: {reason}" for reason, count in self.stored.most_common(25)),
        ]


@dataclass
class _Examination:
    spark: SparkSession
    oracle: Oracle
    upstream: Relation
    rows: list[tuple[Any, ...]]
    findings: Findings
    must_fail: list[tuple[View, int]] = field(default_factory=list[tuple[View, int]])

    def view(self, view: View) -> None:
        """Compare all outputs of a drawn view, over the rows on which Postgres answers them."""
        if (predicate := view.predicate) is not None:
            # As an output as well: of every row one sees there what it says.
            view = replace(view, outputs=(*view.outputs, predicate))
            if not self._filters(predicate):
                view = replace(view, predicate=None)
        safe: list[str] = []
        guarded: list[str] = []
        bad: set[int] = set()
        for output in view.outputs:
            failing = self._failing_rows(replace(view, outputs=(output,)))
            if failing is None:
                continue
            (guarded if failing else safe).append(output)
            bad |= failing
        self.findings.used.update(view.used)
        self._compared(replace(view, outputs=tuple(safe)))
        guard = f"id not in ({', '.join(map(str, sorted(bad)))})"
        condition = guard if view.predicate is None else f"{view.predicate} and {guard}"
        self._compared(replace(view, outputs=tuple(guarded), predicate=condition))

    def _filters(self, predicate: str) -> bool:
        """Whether a condition can be one of a view that Spark computes, and leaves some rows to compare."""
        bound = self._planned(View(("1",), predicate))
        if bound is None or spark_reason(bound.stage) is not None or self.oracle.ask(predicate).errors:
            return False
        return self.oracle.survivors(predicate) >= SURVIVORS_MIN

    def _failing_rows(self, alone: View) -> set[int] | None:
        """Return the rows on which an output fails, or None where it is refused or is never computed."""
        self.findings.cases += 1
        bound = self._planned(alone)
        if bound is None:
            return None
        asked = self.oracle.ask(alone.outputs[0], alone.predicate)
        if spark_reason(bound.stage) is None:
            self.must_fail += [(replace(alone, predicate=f"id = {row}"), row) for row in list(asked.errors)[:1]]
        # A constant that fails does so whatever rows are left out.
        return None if asked.always else set(asked.errors)

    def _planned(self, view: View) -> BoundStage | None:
        try:
            return planned(self.oracle.connection, self.upstream, view.text)
        except (psycopg.Error, Refused) as refusal:
            self.findings.refused[str(refusal).splitlines()[0][:90]] += 1
            return None

    def _compared(self, view: View) -> None:
        """Compare a view by the text that the store runs, and what Spark can compute of it with Spark as well."""
        by_both: list[str] = []
        for output in view.outputs:
            bound = planned(self.oracle.connection, self.upstream, replace(view, outputs=(output,)).text)
            reason = spark_reason(bound.stage)
            if reason is None:
                by_both.append(output)
            else:
                self.findings.stored[(bound.stage.rows[1].refusal or reason)[:90]] += 1
        if view.outputs:
            self._by_store(view)
        self.findings.by_store += len(view.outputs) - len(by_both)
        self._by_spark(replace(view, outputs=tuple(by_both)))

    def _by_store(self, view: View) -> None:
        bound = planned(self.oracle.connection, self.upstream, view.text)
        stage = bound.stage
        values = ", ".join(f'{one.sql} as "{one.name}"' for one in stage.rows)
        conditions = " and ".join(["true", *(one.sql for one in stage.conditions)])
        found = self.oracle.answer(f'select {values} from t "{stage.driver.alias}" where {conditions}', bound.target)
        self._told(view, found, self.oracle.answer(view.text, bound.target), "value of the store")

    def _by_spark(self, view: View) -> None:
        """Have Spark compute a view; of several outputs that fail together, the ones that do are found."""
        if not view.outputs:
            return
        bound = planned(self.oracle.connection, self.upstream, view.text)
        try:
            texts = in_spark(self.spark, bound, self.rows, as_text=True)
            found = self.oracle.read(texts, bound.target)
        except (*FAILED, psycopg.Error) as error:
            half = len(view.outputs) // 2
            if half:
                for part in (view.outputs[:half], view.outputs[half:]):
                    self._by_spark(replace(view, outputs=part))
            elif any(reason in str(error) for reason in FAILURES):
                self.findings.documented += 1
            else:
                self.findings.differences.append(Difference(view, f"fails: {str(error)[:300]}", 0))
            return
        self.findings.by_spark += len(view.outputs)
        self._told(view, found, self.oracle.answer(view.text, bound.target), "value of Spark")

    def _told(self, view: View, found: Rows, expected: Rows, what: str) -> None:
        """Tell of each output the first row in which it differs."""
        if found.keys() != expected.keys():
            self.findings.differences.append(Difference(view, f"rows: {sorted(found.keys() ^ expected.keys())}"))
        told: set[int] = set()
        for row in sorted(found.keys() & expected.keys()):
            for place, (ours, right) in enumerate(zip(found[row][1:], expected[row][1:], strict=True)):
                if ours != right and place not in told:
                    told.add(place)
                    self.findings.differences.append(Difference(view, what, place, row, right, ours))

    def failing(self) -> None:
        """Try what must fail."""
        must = [(view, row) for view, row in self.must_fail if not any(word in view.text for word in LAZY)]
        for view, row in must[:FAILING_MAX]:
            try:
                bound = planned(self.oracle.connection, self.upstream, view.text)
                (found,) = in_spark(self.spark, bound, self.rows, as_text=True)
                self.oracle.read([found], bound.target)
            except (*FAILED, psycopg.Error):
                self.findings.failing += 1
                continue
            # Beside a NULL Spark does not compute what Postgres fails on.
            if found[1] is None or all(word in view.text for word in NULL_SEEN):
                self.findings.lazy += 1
            else:
                self.findings.differences.append(Difference(view, "does not fail", 0, row, None, found[1]))


def examine(world: World, url: str, spark: SparkSession) -> Findings:
    """Compare the views of a world in a database of its own."""
    with fresh_database(url) as database, psycopg.connect(database, autocommit=True) as connection:
        oracle = Oracle.over(connection, world)
        upstream = table(world.ddl).model_copy(update={"id": RelationId(1)})
        one = _Examination(spark, oracle, upstream, travelling(connection, upstream), Findings())
        for view in world.views:
            one.view(view)
        one.failing()
    return one.findings


def shown(difference: Difference, world: World) -> str:
    """Return a difference for people."""
    view = difference.view
    lines = [f"seed {world.seed}: {difference.what}"]
    if difference.output is not None:
        view = replace(view, outputs=(view.outputs[difference.output],))
    lines.append(f"  {view.text}")
    if difference.row is not None:
        row = world.rows[difference.row - 1]
        named = {
            column.name: (row.get(column.name), column.type) for column in world.columns if column.name in view.text
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
