"""Compute the stages of a job (joins, aggregates, partitions) and the lookup indexes that they need.

A stage looks up rows of its inputs by columns that are not their key. The indexes for this exist before the job starts.
Those of its hidden relations are created with their tables. `service.operations.upkeep.lookup_indexes` builds those of
users' relations.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from service.protocol.ids import RelationId
from service.protocol.plan import JobPlan, TableScanPlan
from service.protocol.stage import LookupIndex, Stage, lookups


def stages_of(plan: JobPlan) -> tuple[Stage, ...]:
    """Return the stages of a job, in order."""
    return tuple(stage for stage, _ in plan.staged)


def lookups_of(plan: JobPlan) -> frozenset[LookupIndex]:
    """Return the indexes that the stages of a job need."""
    return frozenset(
        index
        for stage, computing in plan.staged
        for index in lookups(stage, {read.id: read for read in computing.reads})
    )


def of_users(plan: JobPlan, needed: Collection[LookupIndex]) -> frozenset[LookupIndex]:
    """Return the indexes of users' relations among `needed`."""
    hidden = {one.id for one in plan.hidden}
    return frozenset(one for one in needed if one.relation not in hidden)


def only_inserts(plan: JobPlan) -> bool:
    """Whether the backfill of a job only inserts rows, so that its tables need no index until it ends.

    This is false for a partition. It is also false for several stages, because a later stage reads the rows that an
    earlier one has written.
    """
    stages = stages_of(plan)
    return not stages or (len(stages) == 1 and stages[0].partition is None)


def sums_of(plan: JobPlan) -> Mapping[RelationId, Sequence[str]]:
    """Return the columns of the log of partial groups of each output that has one."""
    return {
        plan.written_by(scan).id: stage.aggregate.state
        for stage, scan in plan.staged
        if stage.aggregate is not None and isinstance(scan, TableScanPlan)
    }


def named(index: LookupIndex, plans: Iterable[JobPlan]) -> str:
    """Return an index as text: the relation, as the plans name it, and its columns."""
    reads = (read for plan in plans for _, computing in plan.staged for read in computing.reads)
    name = next((read.name for read in reads if read.id == index.relation), f"relation {index.relation}")
    return f"{name} ({', '.join(index.columns)})"
