"""Run CREATE SINK: plan a view's job, but send its rows to a connector instead of storing them."""

from dataclasses import replace

from service.domain.connectors import SINKS, checked
from service.domain.roles import Role
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.statements.views import create_from_query
from service.ports.records import NewJob
from service.protocol.relation import RelationKind
from service.sql.statements.sinks import CreateSink


@handles(CreateSink, needs=Role.OPERATOR)
async def _create(call: Call, statement: CreateSink) -> Outcome:
    connector, _ = checked(statement.options, (), SINKS)

    def sunk(view: NewJob) -> NewJob:
        scans = tuple(replace(scan, sink=connector) for scan in view.table_scans)
        relation = view.relation.model_copy(update={"kind": RelationKind.SINK})
        return replace(view, relation=relation, fragments=scans)

    return await create_from_query(call, statement.query, RelationKind.SINK, sunk)
