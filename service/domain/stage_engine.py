"""Choose the engine that reads the history of a view's stages: the state store, or Spark."""

from collections.abc import Collection, Mapping, Sequence

from service.domain.errors import Conflict, Invalid
from service.domain.parameters import SESSION_DEFAULTS
from service.protocol.relation import Relation
from service.protocol.stage import EngineChoice, Stage
from service.protocol.stage_spark import lake_reason, spark_reason, verify_reason


def asked_engine(session: Mapping[str, str]) -> EngineChoice:
    """Return the choice of a session that creates a view."""
    return EngineChoice(session.get("stage_engine", SESSION_DEFAULTS["stage_engine"]))


def with_engine(stage: Stage, choice: EngineChoice) -> Stage:
    """Return a stage, with its Spark texts, as a session creates it. Raises Invalid if Spark shall and cannot."""
    reason = spark_reason(stage)
    if choice is EngineChoice.SPARK and reason is not None:
        raise Invalid(
            f"stage_engine is spark, and only the state store can compute a stage of this view: {reason}."
            " SET stage_engine = auto leaves the choice to tidefill",
            pointer="stage_engine",
        )
    return stage.model_copy(update={"engine": choice})


def check_lake(stage: Stage, read: Sequence[Relation]) -> None:
    """Raise Invalid if one of the relations `read` lies in a lake, and Spark cannot or shall not compute the stage."""
    no_store = lake_reason(read)
    if no_store is None:
        return
    if (reason := spark_reason(stage)) is not None:
        raise Invalid(f"{no_store}, and only the state store can compute a stage of this view: {reason}")
    if stage.engine is EngineChoice.STORE:
        raise Invalid(f"stage_engine is store, and {no_store}: SET stage_engine = auto", pointer="stage_engine")


def check_verifiable(name: str, stages: Collection[Stage], *, created: bool) -> None:
    """Raise Conflict if Spark cannot compute what a view of `stages` holds. A view without any has another plan."""
    if (reason := _not_by_spark(stages)) is not None:
        raise Conflict(
            f'only the state store computes a stage of "{name}" as Postgres does, verify it with engine=store: {reason}'
        )
    if stages and not created:
        raise Conflict(f'"{name}" is being created: Spark compares joins and aggregates once they are whole')


def check_selectable(stages: Collection[Stage]) -> None:
    """Raise Invalid if Spark does not compute the stages of a query as Postgres does."""
    if (reason := _not_by_spark(stages)) is not None:
        raise Invalid(f"only Postgres computes a part of this query, and it cannot read rows in a lake: {reason}")


def _not_by_spark(stages: Collection[Stage]) -> str | None:
    """Return why Spark does not compute a stage as Postgres does, None if it computes all of them so."""
    return next((reason for stage in stages if (reason := verify_reason(stage)) is not None), None)
