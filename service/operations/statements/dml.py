"""Bind INSERT, UPDATE and DELETE and pass them to `service.operations.rows.dml`."""

from service.domain.errors import Invalid
from service.domain.loads import published_in_parts
from service.domain.roles import Role
from service.operations.offload import beside, bound_insert, names_in
from service.operations.rows import dml
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.protocol import dml as wire
from service.protocol.relation import Relation
from service.sql.dml.bind import BoundInsert, bind_delete, bind_update
from service.sql.statements.dml import Delete, Insert, Update


async def _relations(call: Call, statement: Insert | Update | Delete) -> dict[str, Relation]:
    target = statement.target
    names = await names_in(call.world.parsers, call.text)
    relations = await dml.readable(call.world, names, target, position=statement.position)
    if target not in relations:
        async with call.world.stores.begin() as tx:
            if await tx.views.named(target) is not None:
                raise Invalid(f'cannot change view "{target}"', position=statement.position)
    return relations


@handles(Insert, needs=Role.OPERATOR)
async def _insert(call: Call, statement: Insert) -> Outcome:
    bound = await bound_insert(call.world.parsers, call.text, statement, await _relations(call, statement))
    rows = await _inserted(call, bound)
    return Outcome(f"INSERT 0 {rows}", notices=published_in_parts(rows) if bound.source is None else ())


async def _inserted(call: Call, bound: BoundInsert) -> int:
    if bound.source is not None:
        id_ = await dml.reserve(call.world)
        insert = wire.InsertValues(id=id_, relation=bound.relation, columns=bound.columns, source=bound.source)
        return await dml.run(call.world, insert, asked_by=call.asked_by, claim=call.claim)
    assert bound.query is not None
    columns = [bound.relation.column(name) for name in bound.columns]
    # A statement with a key goes on without its caller, who may ask for its answer later.
    gone = call.gone if call.claim is None else None
    return await dml.insert_query(
        call.world, bound.relation, columns, bound.query.sql, asked_by=call.asked_by, claim=call.claim, gone=gone
    )


@handles(Update, needs=Role.OPERATOR)
async def _update(call: Call, statement: Update) -> Outcome:
    relations = await _relations(call, statement)
    bound = await beside(call.world.parsers, call.text, bind_update, statement, relations)
    id_ = await dml.reserve(call.world)
    update = wire.Update(id=id_, relation=bound.relation, assignments=bound.assignments, predicate=bound.predicate)
    return Outcome(f"UPDATE {await dml.run(call.world, update, asked_by=call.asked_by, claim=call.claim)}")


@handles(Delete, needs=Role.OPERATOR)
async def _delete(call: Call, statement: Delete) -> Outcome:
    relations = await _relations(call, statement)
    bound = await beside(call.world.parsers, call.text, bind_delete, statement, relations)
    delete = wire.Delete(id=await dml.reserve(call.world), relation=bound.relation, predicate=bound.predicate)
    rows = await dml.run(call.world, delete, asked_by=call.asked_by, claim=call.claim)
    return Outcome("TRUNCATE_TABLE" if statement.truncate else f"DELETE {rows}")
