"""Tell what the stages of a job need: joins, aggregates and partitions, which the state store computes.

A stage looks up rows of its inputs by columns that are not their key. The indexes for this exist before the job starts:
those of its hidden relations are created with their tables, and `service.operations.upkeep.lookup_indexes` builds those
of users' relations.
"""

from collections.abc import Collection

from service.protocol.plan import JobPlan
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
    """Whether the history of a job is only inserted, so that its tables need no index meanwhile.

    The rows of groups are found and changed, and a later stage reads what an earlier one has written.
    """
    stages = stages_of(plan)
    return not stages or (len(stages) == 1 and stages[0].aggregate is None and stages[0].partition is None)


def named(index: LookupIndex, plan: JobPlan) -> str:
    """Return an index in words: the relation and its columns."""
    names = {read.id: read.name for _, computing in plan.staged for read in computing.reads}
    return f"{names.get(index.relation, index.relation)} ({', '.join(index.columns)})"
