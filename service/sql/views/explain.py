"""Print the plan of a materialized view: what it stores, what it reads and how, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.strategy import Strategy
from service.protocol.plan import Stateless
from service.protocol.relation import Relation
from service.sql.views.backfill_order import Edges

_PUSHED: Final = "store; spark in epochs with changes, which it compares with what was read"
_PUSHED_CHANGES: Final = "spark until history is read, then store"
_COMPUTED: Final = "spark"
SCAN_ENGINE: Final = "stage_engine concerns joins, aggregates, subqueries and windows: a plain scan is not affected"
"""What a session is told whose choice of an engine has no effect."""


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
        *(line for scan in scans[:-1] for line in _scan(scan, strategy, "├─", "│ ")),
        *_scan(scans[-1], strategy, "└─", "  "),
        f"Backfill strategy: {strategy.scan_type}, because {strategy.why}",
        f"Backfill order: {f'FIXED({edges})' if edges else 'NONE'}",
        *(["Backfill worker: its own, until the job merges"] if serverless else []),
        *([] if notice is None else [f"Note: {notice}"]),
    )


def _scan(scan: PlannedScan, strategy: Strategy, branch: str, margin: str) -> Iterator[str]:
    pushed = scan.query.pushdown is not None
    facts = [
        f"table: {scan.upstream}",
        f"type: {strategy.scan_type}",
        f"parallelism: {scan.actors}",
        f"pages: {'copied inside the state store' if pushed else 'through Spark'}",
        *([] if scan.rate_limit is None else [f"rate_limit: {scan.rate_limit}"]),
    ]
    yield f"{branch}StreamTableScan {{ {', '.join(facts)} }}"
    yield f"{margin}  engine of history: {_PUSHED if pushed else _COMPUTED}"
    yield f"{margin}  engine of changes: {_PUSHED_CHANGES if pushed else _COMPUTED}"
    for one in scan.query.computed:
        yield f"{margin}  computed by the state store: {one.name} = {one.expression}"
    yield f"{margin}  projection: {', '.join(scan.query.projection)}"
    if scan.query.predicate is not None:
        yield f"{margin}  predicate: {scan.query.predicate}"
