"""Create a materialized view that reads no relation. The state store computes its rows once, and it never changes."""

from typing import Final

from service.domain.errors import Invalid, TooLarge
from service.domain.quotas import Bound
from service.operations.offload import beside
from service.operations.statements.staged_views import columns_of
from service.operations.world import World
from service.ports.records import NewJob, NewSplitScan
from service.ports.state_store import DESCRIBE_MS
from service.protocol import constant
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.relation import KEY_PREFIX, VNODE_COUNT_DEFAULT, Relation, RelationKind
from service.sql.queries.constant import is_constant, is_kept
from service.sql.queries.finishing import stored_type
from service.sql.statements.tables import UNBOUND
from service.sql.statements.views import CreateMaterializedView

ROWS_MAX: Final = 10_000
"""The rows are a part of the plan, which a worker gets whenever its graph starts."""
_BYTES_MAX: Final = Bound("the rows of a constant view", 1 << 20)
_KEY: Final = f"{KEY_PREFIX}row"


async def constant_job(
    world: World, statement: CreateMaterializedView, kind: RelationKind, *, background: bool
) -> NewJob | None:
    """Return the job of a view that reads no relation, or None for any other view. Raises Invalid."""
    if not await beside(world.parsers, statement.text, is_constant, statement.query):
        return None
    place = statement.query.start + 1
    if kind is RelationKind.SINK:
        raise Invalid("a sink reads a relation: FROM is missing", position=place)
    if statement.target is not None:
        raise Invalid("a view in a lake reads a relation: FROM is missing", position=place)
    columns = tuple([_column(*one, place) for one in await columns_of(world, statement)])
    names = [one.name for one in columns]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Invalid(f'column "{name}" specified more than once', position=place)
    key = Column(name=_KEY, type=ColumnType.parse("bigint"), nullable=False, hidden=True)
    relation = Relation(
        id=UNBOUND,
        name=statement.name,
        kind=kind,
        columns=(*columns, key),
        key=(KeyColumn(name=_KEY),),
        vnode_count=VNODE_COUNT_DEFAULT,
    )
    rows = await _rows(world, statement, columns)
    scan = NewSplitScan(actors=(((0, 0),),), connector=constant.of_rows(rows))
    return NewJob(relation, statement.text, background=background, fragments=(scan,))


def _column(name: str, kind: str, place: int) -> Column:
    try:
        return Column(name=name, type=stored_type(kind))
    except ValueError as error:
        raise Invalid(f'column "{name}" {error}', position=place) from None


async def _rows(
    world: World, statement: CreateMaterializedView, columns: tuple[Column, ...]
) -> list[tuple[str | None, ...]]:
    """Return the rows as texts, each with its number. Raises Invalid if there are too many."""
    names = [f"c{at}" for at in range(len(columns))]
    texts = ", ".join(f"({name}::{one.type})::text" for name, one in zip(names, columns, strict=True))
    sql = f"select {texts} from (\n{statement.sql}\n) tidefill_row ({', '.join(names)})"
    place = statement.query.start + 1
    try:
        found = await world.state_store.reader.query(sql, row_limit=ROWS_MAX, timeout_ms=DESCRIBE_MS, quota=_BYTES_MAX)
    except TooLarge:
        found = None
    except Invalid as error:
        raise Invalid(error.message, position=place) from None
    if found is None or found.truncated:
        message = f"a view without FROM has at most {ROWS_MAX} rows and 1 MB: INSERT the rows into a table"
        raise Invalid(message, position=place)
    for row in found.rows:
        for column, value in zip(columns, row, strict=True):
            if value is not None and not is_kept(column.type, value):
                raise Invalid(f'column "{column.name}": {value} cannot be kept', position=place)
    return [(*row, str(number)) for number, row in enumerate(found.rows)]
