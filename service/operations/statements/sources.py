"""Run CREATE SOURCE, and CREATE, ALTER, DROP and SHOW of secrets."""

from service.domain.roles import Role
from service.operations.sources import lake_sources, registry, secrets
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome, listed
from service.sql.statements.lake import CreateLakeSource
from service.sql.statements.sources import AlterSecret, CreateSecret, CreateSource, DropSecret, ShowSecrets


@handles(CreateSource, needs=Role.ADMIN)
async def _create(call: Call, statement: CreateSource) -> Outcome:
    notices = await registry.create(call.world, statement, asked_by=call.asked_by)
    return Outcome("CREATE_SOURCE", notices=notices)


@handles(CreateLakeSource, needs=Role.ADMIN)
async def _create_in_lake(call: Call, statement: CreateLakeSource) -> Outcome:
    notices = await lake_sources.create(call.world, statement, asked_by=call.asked_by)
    return Outcome("CREATE_SOURCE", notices=notices)


@handles(CreateSecret, needs=Role.ADMIN)
async def _create_secret(call: Call, statement: CreateSecret) -> Outcome:
    notices = await secrets.create(
        call.world, statement.name, statement.value, if_not_exists=statement.if_not_exists, asked_by=call.asked_by
    )
    return Outcome("CREATE_SECRET", notices=notices)


@handles(AlterSecret, needs=Role.ADMIN)
async def _alter_secret(call: Call, statement: AlterSecret) -> Outcome:
    await secrets.change(call.world, statement.name, statement.value, asked_by=call.asked_by)
    return Outcome("ALTER_SECRET")


@handles(DropSecret, needs=Role.ADMIN)
async def _drop_secret(call: Call, statement: DropSecret) -> Outcome:
    notices = await secrets.drop(call.world, statement.name, if_exists=statement.if_exists, asked_by=call.asked_by)
    return Outcome("DROP_SECRET", notices=notices)


@handles(ShowSecrets, needs=Role.ADMIN)
async def _show_secrets(call: Call, _: ShowSecrets) -> Outcome:
    return listed(await secrets.names(call.world))
