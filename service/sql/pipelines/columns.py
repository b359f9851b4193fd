"""Tell the columns of relations that definitions in Python read, with Spark's types as far as they are known."""

from collections.abc import Iterable, Mapping

from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError

from service.domain.errors import Invalid
from service.domain.pipelines import Dataset
from service.sql.pipelines.comparing import shape_of

Columns = Mapping[str, str]
"""Names of columns, with Spark's types. A type that is not known is `unknown`."""
_UNKNOWN = "unknown"


def columns_of(dataset: Dataset) -> Columns:
    """Return the columns of a dataset that is defined in SQL. Raises Invalid if its query does not name them."""
    shape = None if dataset.fault is not None else shape_of(dataset.created_at(1))
    if shape is None:
        raise Invalid(f'it reads "{dataset.name}", which is refused')
    assert isinstance(shape.query, exp.Query), shape.query
    names = shape.columns or tuple(shape.query.named_selects)
    if "*" in names:
        raise Invalid(f'the query of "{dataset.name}" names its columns by a star: name them for those who read it')
    return dict.fromkeys(names, _UNKNOWN)


def spark_columns(columns: Iterable[tuple[str, str]]) -> Columns:
    """Return columns with Postgres's types as Spark has them."""
    return {name: _spark_type(kind) for name, kind in columns}


def _spark_type(kind: str) -> str:
    try:
        return exp.DataType.build(kind, dialect=Postgres).sql(Databricks)
    except SqlglotError:
        return _UNKNOWN
