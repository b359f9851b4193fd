"""Decide which jobs stay in a graph of their own, because their epochs cost more than what changed (I13). Pure.

Every barrier of the database graph carries statements and waits for all of its stages. A stage that reads a large input
whole for each change would delay them, so its job has barriers of its own for ever. A job that reads such a relation
reads it as of an epoch that its graph has committed, and has a graph of its own too.
"""

from collections.abc import Collection, Mapping, Sequence

from service.domain.errors import Invalid
from service.domain.strategy import Strategy
from service.protocol.ids import RelationId
from service.protocol.plan import ScanType
from service.protocol.stage import Equalities, Stage


def whole_input(stage: Stage) -> RelationId | None:
    """Return an input that the stage reads whole for a change of it or of another one, or None if there is none.

    That is the only part of a partition without columns, unless its first rows suffice, and an input that no condition
    equates with another one. Beside an input of one row, it is the driver: another value of that row changes them all.
    """
    if stage.partition is not None:
        return stage.driver.relation if stage.is_whole and not stage.partition.first else None
    equalities = Equalities(stage)
    for one in stage.inputs[1:]:
        others = {each.alias for each in stage.inputs if each.alias != one.alias}
        if not any(equalities.with_inputs(one.alias, others)):
            return stage.driver.relation if one.single else one.relation
    return None


def own_graph(
    stages: Sequence[tuple[Stage, RelationId]],
    rows: Mapping[RelationId, int],
    names: Mapping[RelationId, str],
    *,
    rows_max: int,
) -> str | None:
    """Return why a job of some stages, each with the relation that it writes, stays in a graph of its own.

    `rows` has the number of rows of each relation that exists. A relation that the job itself makes has about as many
    as the driver of its stage, and one of groups has few.
    """
    known = dict(rows)
    for stage, target in stages:
        whole = whole_input(stage)
        read = 0 if whole is None else known.get(whole, 0)
        if whole is not None and read > rows_max:
            return (
                f"a stage reads all rows of {names.get(whole, 'another stage')} ({read}) for each change, and more than"
                f" own_graph_rows ({rows_max}) would delay the statements of others"
            )
        known[target] = 0 if stage.aggregate is not None else known.get(stage.driver.relation, 0)
    return None


def reading(names: Collection[str]) -> str:
    """Return why a job that reads relations with graphs of their own, by their names, stays in one as well."""
    return f"it reads {', '.join(sorted(names))}, which has a graph of its own"


def reading_lake(names: Collection[str]) -> str:
    """Return why a job that reads relations of a lake, by their names, stays in a graph of its own."""
    return f"it reads {', '.join(sorted(names))}, which lies in a lake"


def check_own_graph(reason: str | None, strategy: Strategy) -> None:
    """Raise Invalid if a job that stays in a graph of its own has a strategy that begins in the database graph."""
    if reason is not None and strategy.scan_type is not ScanType.SNAPSHOT_BACKFILL:
        raise Invalid(
            f"the view needs a graph of its own, because {reason}. Only a Snapshot backfill has one:"
            " SET streaming_use_snapshot_backfill = true"
        )
