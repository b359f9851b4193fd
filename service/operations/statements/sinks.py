"""Run CREATE SINK: plan a view's job, but send its rows to a connector instead of storing them."""

from dataclasses import replace

from service.domain.roles import Role
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.statements.targets import needs, sent
from service.operations.statements.views import create_from_query
from service.ports.records import NewJob
from service.protocol.relation import RelationKind
from service.sql.statements.sinks import CreateSink


def _needs(statement: CreateSink) -> Role:
    return needs(statement.target)


@handles(CreateSink, needs=_needs)
async def _create(call: Call, statement: CreateSink) -> Outcome:
    async def sunk(view: NewJob) -> NewJob:
        relation = view.relation.model_copy(update={"kind": RelationKind.SINK})
        return await sent(call, replace(view, relation=relation), statement.target)

    return await create_from_query(call, statement.query, RelationKind.SINK, sunk)
