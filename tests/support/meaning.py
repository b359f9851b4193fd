"""The answer of a view over one table: as a SELECT in Postgres, and through Spark as an epoch computes it."""

from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.string import TextLoader
from pyspark.sql import SparkSession

from service.domain.errors import Invalid
from service.protocol.relation import Relation
from service.protocol.stage_spark import spark_reason
from service.sql.queries.finishing import description, finished
from service.sql.queries.plan import plan_query
from tests.support.expressions import query_of, table
from tests.support.stages_oracle import run, types_of
from workers.backfill.stages import BoundStage
from workers.engines.rows import input_schema, row_batch
from workers.engines.spark import project
from workers.queries.projection import projection_plan
from workers.spark.frames import spark_schema
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.statements import read_postgres
from workers.state_store.wire import ticked, to_wire

Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True)
class Answers:
    """The rows of a view as texts, in order, by each that can compute them."""

    postgres: Rows
    spark: Rows


def planned(connection: "psycopg.Connection[Any]", upstream: Relation, query: str) -> BoundStage:
    """Plan a projection over one table, which Postgres knows. Raises Invalid, NotFound, psycopg.Error."""
    names = [column.name for column in run(connection, f"select * from ({query}) q limit 0").description or []]
    (draft,) = plan_query(query_of(query), {upstream.name: upstream}, {}, names)
    known = {upstream.id: upstream}
    made = finished(draft, types_of(connection, description(draft, known)), known)
    return BoundStage(made.stage, made.relation, {**known, made.relation.id: made.relation})


def travelling(connection: "psycopg.Connection[Any]", upstream: Relation) -> list[tuple[Any, ...]]:
    """Return the rows of a table with a vnode, in wire types."""
    # As psycopg reads it, a jsonb would be no text.
    connection.adapters.register_loader("jsonb", TextLoader)
    wire = ", ".join(read_postgres(column) for column in upstream.columns)
    return run(connection, f"select 0::smallint, {wire} from {upstream.name}").fetchall()


def answers(url: str, spark: SparkSession, definition: str, values: str, query: str) -> Answers:
    """Fill the table with `values`, and answer `query` over it. Raises what Postgres, the planner or Spark raise."""
    upstream = table(definition)
    upstream = upstream.model_copy(update={"id": 1})
    with psycopg.connect(url) as connection:
        run(connection, f"set timezone = 'UTC'; drop table if exists {upstream.name}; {definition}")
        run(connection, f"insert into {upstream.name} values {values}")
        bound = planned(connection, upstream, query)
        if (reason := spark_reason(bound.stage)) is not None:
            raise Invalid(reason)
        # Spark first: what Postgres fails on, it has to fail on too.
        found = in_spark(spark, bound, travelling(connection, upstream))
        return Answers(_texts(run(connection, query).fetchall()), _texts(found))


def in_spark(
    spark: SparkSession, bound: BoundStage, travelling: list[tuple[Any, ...]], *, as_text: bool = False
) -> list[tuple[Any, ...]]:
    """Return the visible columns of a projection as they are written, or as texts that Postgres reads."""
    upstream, target = bound.upstream, bound.target
    schema = input_schema(upstream)
    relation = pa.schema([field for field in schema if field.name in {VNODE, *(c.name for c in upstream.columns)}])
    columns = list(zip(*travelling, strict=True)) or [()] * len(relation)
    read = pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, relation, strict=True)], schema=relation
    )
    rows: Any = row_batch(schema, PAGE, read, None).to_pylist()
    # All of it is collected: what is not asked for would not be computed either.
    plan = projection_plan(bound, upstream)
    if as_text:
        texts = (
            f"cast({to_wire(one.name, one.type, binary=False)} as string) as {ticked(one.name)}"
            for one in target.columns
        )
        plan = replace(plan, written=(OPERATION, *texts))
    found = project(spark.createDataFrame(rows, spark_schema(schema)), plan).collect()
    return [tuple(row[column.name] for column in target.visible) for row in found]


def _texts(rows: list[tuple[Any, ...]]) -> Rows:
    return sorted((tuple(None if value is None else str(value) for value in row) for row in rows), key=repr)
