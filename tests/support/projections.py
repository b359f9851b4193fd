"""Projections over one relation, written once for both engines: `{v}` is a column of it."""

import re
from collections.abc import Sequence

from service.protocol.quoting import quoted
from service.protocol.relation import Relation
from service.protocol.stage import Condition, EngineChoice, Input, Join, JoinKind, Stage, Value
from service.protocol.stage_spark import spark_column
from workers.backfill.stages import BoundStage

ALIAS = "i"


def projection(
    upstream: Relation,
    target: Relation,
    values: Sequence[str] = (),
    where: str | None = None,
    *,
    engine: EngineChoice = EngineChoice.AUTO,
) -> Stage:
    """Return the stage that fills the target's columns with `values`, from rows that satisfy a condition.

    Without values, it copies the columns of the same names.
    """
    values = values or [f"{{{column.name}}}" for column in target.columns]
    return Stage(
        joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias=ALIAS, relation=upstream.id),)),),
        where=()
        if where is None
        else (Condition(sql=_store(where), spark=_spark(where), inputs=(ALIAS,), rejects=(ALIAS,)),),
        rows=tuple(
            Value(name=column.name, sql=_store(text), spark=_spark(text), column=_plain(text))
            for column, text in zip(target.columns, values, strict=True)
        ),
        engine=engine,
    )


def bound_projection(
    upstream: Relation,
    target: Relation,
    values: Sequence[str] = (),
    where: str | None = None,
    *,
    engine: EngineChoice = EngineChoice.AUTO,
) -> BoundStage:
    """Return such a stage with its relations."""
    stage = projection(upstream, target, values, where, engine=engine)
    return BoundStage(stage, target, {upstream.id: upstream})


def _plain(text: str) -> str | None:
    found = re.fullmatch(r"\{(\w+)\}", text)
    return None if found is None else found[1]


def _store(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: f'"{ALIAS}".{quoted(found[1])}', text)


def _spark(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: f"`{spark_column(ALIAS, found[1])}`", text)
