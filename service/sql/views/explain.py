"""Print the plan of a materialized view: what it stores, what it reads and how, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.strategy import Strategy
from service.protocol.barrier import ScanLimits
from service.protocol.plan import ScanType, Stateless
from service.protocol.relation import Relation
from service.protocol.stage import Engine
from service.protocol.stage_spark import chosen_engine
from service.sql.views.backfill_order import Edges

_BESIDE: Final = "; spark in epochs that read both, because it compares changes with what was read"
_COMPUTED: Final = "only spark computes these values in a scan of one relation"
SCAN_ENGINE: Final = "stage_engine is store, and Spark computes what a sink or a NoShuffle backfill has to compute"
"""What a session is told whose choice of an engine has no effect."""


def engines(limits: ScanLimits, engine: Engine | None, why: str, *, alone: bool = True) -> tuple[str, str]:
    """Return what reads history and what follows changes, and why. No engine: it depends on the rows.

    `alone`: a changed row concerns no other row of what is read.
    """
    if engine is not None:
        return f"{engine}, because {why}", f"{engine}, because {why}"
    history, changes = limits.spark_history_rows, limits.spark_changes_rows
    large = f"spark from {changes} changed rows of an epoch on, store below"
    return (
        f"spark from {history} rows on, store below: jobs of Spark would take longer than the rows",
        large if alone else "store, which looks up the rows that a change concerns",
    )


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """One occurrence of an upstream. `rate_limit` is in rows per second and actor."""

    upstream: str
    query: Stateless
    actors: int
    rate_limit: int | None


def plan_text(
    relation: Relation,
    scans: Sequence[PlannedScan],
    strategy: Strategy,
    order: Edges,
    limits: ScanLimits,
    *,
    serverless: bool = False,
    notice: str | None = None,
) -> tuple[str, ...]:
    """Return the lines of the plan. Projections and predicates are the Spark SQL that will run."""
    columns = ", ".join(f"{c.name}(hidden)" if c.hidden else c.name for c in relation.columns)
    key = ", ".join(f"{part.name} DESC" if part.descending else part.name for part in relation.key)
    stored = [f"name: {relation.name}", f"columns: [{columns}]", f"key: [{key}]", f"vnodes: {relation.vnode_count}"]
    edges = ", ".join(f"{before} -> {after}" for before, after in order)
    return (
        f"StreamMaterialize {{ {', '.join(stored)} }}",
        *(line for scan in scans[:-1] for line in _scan(scan, strategy, limits, "├─", "│ ")),
        *_scan(scans[-1], strategy, limits, "└─", "  "),
        f"Backfill strategy: {strategy.scan_type}, because {strategy.why}",
        f"Backfill order: {f'FIXED({edges})' if edges else 'NONE'}",
        *(["Backfill worker: its own, until the job merges"] if serverless else []),
        *([] if notice is None else [f"Note: {notice}"]),
    )


def _scan(scan: PlannedScan, strategy: Strategy, limits: ScanLimits, branch: str, margin: str) -> Iterator[str]:
    pushed = scan.query.pushdown is not None
    chosen = chosen_engine(scan.query.engine, None, None if pushed else _COMPUTED)
    history, changes = engines(limits, *chosen)
    beside = _BESIDE if pushed and strategy.scan_type is not ScanType.SNAPSHOT_BACKFILL else ""
    facts = [
        f"table: {scan.upstream}",
        f"type: {strategy.scan_type}",
        f"parallelism: {scan.actors}",
        *([] if scan.rate_limit is None else [f"rate_limit: {scan.rate_limit}"]),
    ]
    yield f"{branch}StreamTableScan {{ {', '.join(facts)} }}"
    yield f"{margin}  engine of history: {history}{beside}"
    yield f"{margin}  engine of changes: {changes}{beside}"
    for one in scan.query.computed:
        yield f"{margin}  computed by the state store: {one.name} = {one.expression}"
    yield f"{margin}  projection: {', '.join(scan.query.projection)}"
    if scan.query.predicate is not None:
        yield f"{margin}  predicate: {scan.query.predicate}"
