"""Run CREATE TABLE and CREATE TABLE .. FROM: record the job and wait until the table is readable."""

from collections.abc import Sequence
from dataclasses import replace

from service.domain.connectors import checked
from service.domain.parallelism import asked_vnodes
from service.domain.roles import Role
from service.operations.jobs import altering, lifecycle
from service.operations.sources import create_table, lake_sources
from service.operations.sources.lake import create_lake_table
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.statements.targets import needs
from service.ports.records import NewJob, NewSplitScan
from service.ports.state_store import DESCRIBE_MS
from service.protocol.columns import Column
from service.protocol.connector import Connector
from service.protocol.relation import Relation, RelationKind
from service.sql.statements.follow import CreateTableFrom
from service.sql.statements.lake import CreateLakeTable
from service.sql.statements.tables import AddColumn, CreateTable, table_relation


@handles(CreateTable, needs=Role.OPERATOR)
async def _create(call: Call, statement: CreateTable) -> Outcome:
    gone = call.gone_from(if_not_exists=statement.if_not_exists)
    sized = replace(statement, vnode_count=asked_vnodes(statement.vnode_count, call.session))
    relation = table_relation(sized)
    await _check_defaults(call, statement.columns)
    if statement.options is None:
        new = lifecycle.table_job(relation, call.text)
    else:
        new = _filled(relation, *checked(statement.options, relation.visible), call.text)
    made = await lifecycle.create(call.world, new, if_not_exists=statement.if_not_exists, asked_by=call.asked_by)
    await (lifecycle.finished if made.existed else lifecycle.created)(call.world, made.job, gone=gone)
    notices = (f'{RelationKind.TABLE} "{statement.name}" already exists, skipping',) if made.existed else ()
    return await call.made("CREATE_TABLE", statement.name, notices)


@handles(AddColumn, needs=Role.OPERATOR)
async def _add_column(call: Call, statement: AddColumn) -> Outcome:
    await _check_defaults(call, [statement.column])
    notices = await altering.add_column(call.world, statement, call.text, asked_by=call.asked_by)
    return Outcome("ALTER_TABLE", notices=notices)


async def _check_defaults(call: Call, columns: Sequence[Column]) -> None:
    """Raise Invalid, with Postgres's message, for a default that is no value of its column's type."""
    given = [f"({one.default})::{one.type}" for one in columns if one.default is not None]
    if given:
        await call.world.state_store.reader.describe(f"select {', '.join(given)}", timeout_ms=DESCRIBE_MS)


def _filled(relation: Relation, connector: Connector, splits: int, text: str) -> NewJob:
    """Return the job of a table that reads from a connector. One actor reads all splits."""
    scan = NewSplitScan(actors=(((0, splits - 1),),), connector=connector)
    return NewJob(relation, text, background=False, fragments=(scan,))


def _of_target(statement: CreateTableFrom) -> Role:
    return needs(statement.target)


@handles(CreateTableFrom, needs=_of_target)
async def _create_from(call: Call, statement: CreateTableFrom) -> Outcome:
    if (in_lake := await lake_sources.table_of(call.world, statement)) is not None:
        return await _create_in_lake(call, in_lake)
    gone = call.gone_from(if_not_exists=statement.if_not_exists)
    notices = await create_table.create_table(
        call.world, statement, call.text, call.session, asked_by=call.asked_by, gone=gone
    )
    return await call.made("CREATE_TABLE", statement.name, notices)


def _of_lake(statement: CreateLakeTable) -> Role:
    """Return the role. The author of a table chooses the host to which its secrets are sent."""
    return needs(statement.target)


@handles(CreateLakeTable, needs=_of_lake)
async def _create_in_lake(call: Call, statement: CreateLakeTable) -> Outcome:
    gone = call.gone_from(if_not_exists=statement.if_not_exists)
    notices = await create_lake_table(call.world, statement, call.text, call.session, asked_by=call.asked_by, gone=gone)
    return await call.made("CREATE_TABLE", statement.name, notices)
