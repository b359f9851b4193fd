"""SET and SHOW of session variables."""

from typing import cast

from service.operations.statements.call import Call
from service.operations.statements.dispatch import HANDLERS
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.sql.parse import parse
from tests.support.meta_store import A_TEST

NO_WORLD = cast("World", None)
"""Session variables are the caller's: nothing is read or written."""


async def run(text: str, session: dict[str, str]) -> Outcome:
    statement = parse(text)
    return await HANDLERS[type(statement)].run(Call(NO_WORLD, text, session, A_TEST), statement)


async def test_a_variable_without_effect_is_kept_with_a_notice() -> None:
    outcome = await run("SET RW_IMPLICIT_FLUSH TO true", {"background_ddl": "true"})
    assert outcome.session == {"background_ddl": "true", "rw_implicit_flush": "true"}
    assert outcome.notices == (
        (
            '"rw_implicit_flush" is accepted and has no effect: every INSERT, UPDATE and DELETE is answered after its'
            " epoch is published"
        ),
    )
    assert (await run("SHOW rw_implicit_flush", dict(outcome.session))).rows == (("true",),)


async def test_a_variable_with_an_effect_has_no_notice() -> None:
    assert (await run("SET background_ddl = on", {})).notices == ()
