"""Tell whether a job computes stages: joins, aggregates and partitions, which the state store computes."""

from service.protocol.plan import JobPlan
from service.protocol.stage import Stage


def stages_of(plan: JobPlan) -> tuple[Stage, ...]:
    """Return the stages of a job, in the order of its scans."""
    return tuple(scan.query for scan in plan.table_scans if isinstance(scan.query, Stage))
