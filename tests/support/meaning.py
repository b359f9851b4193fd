"""What a view's text answers: as a SELECT in Postgres, and through Spark as an epoch computes it."""

from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.json import set_json_loads
from pyspark.sql import SparkSession

from service.protocol.ids import RequestId
from service.protocol.plan import Pushdown
from service.protocol.quoting import quoted
from service.protocol.relation import Relation
from service.protocol.request import Analyze
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.views.bind import bind_view, view_relation
from service.sql.views.keys import BoundView
from workers.engines.rows import input_schema, row_batch
from workers.engines.spark import project
from workers.queries.stateless import REPORT, plan
from workers.rpc.answer import analyze
from workers.spark.frames import spark_schema
from workers.state_store.port import CONTROL, OPERATION, PAGE, VNODE
from workers.state_store.statements import read_postgres

Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True)
class Answers:
    """The rows of a view as texts, in order, each way that it can be computed."""

    postgres: Rows
    spark: Rows
    pushed: Rows | None


def bound(table: str, query: str) -> tuple[Relation, BoundView]:
    """Bind `query` over the table that `table` creates. Raises Invalid."""
    made, view = parse(table), parse(f"create materialized view v as {query}")
    assert isinstance(made, CreateTable)
    assert isinstance(view, CreateMaterializedView)
    relation = table_relation(made)
    return relation, bind_view(view, {relation.name: relation})


def answers(url: str, spark: SparkSession, table: str, values: str, query: str) -> Answers:
    """Fill the table with `values`, and answer `query` over it. Raises what Postgres, the binder or Spark raise."""
    upstream, view = bound(table, query)
    with psycopg.connect(url) as connection:
        set_json_loads(_text, connection)
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"drop table if exists {upstream.name}".encode())
        connection.execute(table.encode())
        connection.execute(f"insert into {upstream.name} values {values}".encode())
        wire = ", ".join(read_postgres(column) for column in view.scans[0].query.reading(upstream).columns)
        travelling = connection.execute(f"select 0::smallint, {wire} from {upstream.name}".encode()).fetchall()
        spark_rows, target = _through_spark(spark, upstream, view, travelling)
        expected = connection.execute(f"select * from ({query}) q".encode()).fetchall()
        pushdown = view.scans[0].query.pushdown
        pushed = None if pushdown is None else connection.execute(_pushed(upstream, pushdown).encode()).fetchall()
    shown = len(target.visible)
    return Answers(_texts(expected, shown), _texts(spark_rows, shown), pushed and _texts(pushed, shown))


def _text(json: str | bytes) -> str:
    return json if isinstance(json, str) else json.decode()


def _pushed(upstream: Relation, pushdown: Pushdown) -> str:
    columns = ", ".join(quoted(column) if isinstance(column, str) else str(column) for column in pushdown.columns)
    return f"select {columns} from {upstream.name} where {pushdown.predicate or 'true'}"


def _through_spark(
    spark: SparkSession, upstream: Relation, view: BoundView, travelling: list[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], Relation]:
    scan = view.scans[0]
    upstream = scan.query.reading(upstream)
    analyzed = analyze(spark, Analyze(id=RequestId(1), upstream=scan.upstream, query=scan.query, names=view.names))
    target = view_relation(view, [analyzed.columns], "v")
    schema = input_schema(upstream)
    relation = pa.schema([field for field in schema if field.name in {VNODE, *(c.name for c in upstream.columns)}])
    columns = list(zip(*travelling, strict=True)) or [()] * len(relation)
    read = pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, relation, strict=True)], schema=relation
    )
    control = pa.RecordBatch.from_arrays(
        [
            pa.array([{OPERATION: CONTROL, REPORT: "{}"}.get(field.name)], field.type)  # type: ignore[arg-type]
            for field in schema
        ],
        schema=schema,
    )
    table = pa.Table.from_batches([row_batch(schema, PAGE, read, None), control])
    read_rows: Any = table.to_pylist()
    # All of it is collected: what is not asked for would not be computed either.
    rows = project(spark.createDataFrame(read_rows, spark_schema(schema)), plan(scan.query, upstream, target)).collect()
    kept = [tuple(row)[-len(target.columns) :] for row in rows if row[OPERATION] != CONTROL]
    assert len(rows) == len(kept) + 1, "the control row passes"
    return kept, target


def _texts(rows: list[tuple[Any, ...]], count: int) -> Rows:
    return sorted((tuple(None if value is None else str(value) for value in row[:count]) for row in rows), key=repr)
