"""Tell what the stages of a job need: joins, aggregates and partitions, which the state store computes.

A stage looks up rows of its inputs by columns that are not their key. The indexes for this exist before the job starts:
those of its hidden relations are created with their tables, and `service.operations.upkeep.lookup_indexes` builds those
of users' relations.
"""

from collections.abc import Collection, Iterable

from service.protocol.plan import JobPlan
from service.protocol.stage import LookupIndex, Stage, lookups


def stages_of(plan: JobPlan) -> tuple[Stage, ...]:
    """Return the stages of a job, in the order of its scans."""
    return tuple(scan.query for scan in plan.table_scans if isinstance(scan.query, Stage))


def lookups_of(plan: JobPlan) -> frozenset[LookupIndex]:
    """Return the indexes that the stages of a job need."""
    return frozenset(
        index
        for scan in plan.table_scans
        if isinstance(scan.query, Stage)
        for index in lookups(scan.query, {read.id: read for read in (scan.upstream, *scan.lookups)})
    )


def of_users(plan: JobPlan, needed: Collection[LookupIndex]) -> frozenset[LookupIndex]:
    """Return the indexes of users' relations among `needed`."""
    hidden = {one.id for one in plan.hidden}
    return frozenset(one for one in needed if one.relation not in hidden)


def only_inserts(plan: JobPlan) -> bool:
    """Whether the history of a job is only inserted, so that its tables need no index meanwhile.

    The rows of groups are found and changed, and a later stage reads what an earlier one has written.
    """
    stages = stages_of(plan)
    return not stages or (len(stages) == 1 and stages[0].aggregate is None and stages[0].partition is None)


def named(index: LookupIndex, plans: Iterable[JobPlan]) -> str:
    """Return an index in words: the relation, as the plans name it, and its columns."""
    reads = (read for plan in plans for scan in plan.table_scans for read in (scan.upstream, *scan.lookups))
    name = next((read.name for read in reads if read.id == index.relation), f"relation {index.relation}")
    return f"{name} ({', '.join(index.columns)})"
