"""Answer the service's requests outside the barrier sequence (`service.protocol.request`)."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.relation import Relation
from service.protocol.request import Analyze, Analyzed, Rejected, Request, Verified, Verify
from workers.rpc.verify import verify
from workers.runners.failure import explain
from workers.state_store.port import VersionedStore
from workers.state_store.wire import ticked

_TYPES: dict[type[DataType], TypeName] = {
    BooleanType: TypeName.BOOLEAN,
    ByteType: TypeName.SMALLINT,
    ShortType: TypeName.SMALLINT,
    IntegerType: TypeName.INTEGER,
    LongType: TypeName.BIGINT,
    FloatType: TypeName.REAL,
    DoubleType: TypeName.DOUBLE,
    StringType: TypeName.TEXT,
    NullType: TypeName.TEXT,
    BinaryType: TypeName.BYTEA,
    DateType: TypeName.DATE,
    TimestampNTZType: TypeName.TIMESTAMP,
    TimestampType: TypeName.TIMESTAMPTZ,
}


def answer(
    spark: SparkSession, reader: Callable[[Verify], VersionedStore], request: Request, *, parallelism: int
) -> Analyzed | Verified | Rejected:
    """Answer one request. Every error becomes a `Rejected` answer."""
    try:
        match request:
            case Analyze():
                return analyze(spark, request)
            case Verify():
                return verify(spark, reader(request), request, parallelism=parallelism)
    except PySparkException as error:
        return Rejected(id=request.id, error=error.getMessage() or explain(error)[1])
    except Exception as error:  # noqa: BLE001 - the service must learn of any error
        return Rejected(id=request.id, error=explain(error)[1])


def analyze(spark: SparkSession, request: Analyze) -> Analyzed:
    """Find the column types of a query, on an empty frame with its upstream's columns. Raises PySparkException with
    Spark's message.
    """
    frame = spark.createDataFrame([], _schema(request.query.reading(request.upstream)))
    if request.query.predicate is not None:
        frame = frame.where(request.query.predicate)
    typed = frame.selectExpr(*request.query.projection)
    # Optimizing the plan finds an expression that fails on every row (1/0) before anything is created. `inputFiles` is
    # the public call that optimizes and runs no job; a collect takes ten times as long.
    typed.inputFiles()
    columns = (
        Column(name=name, type=_postgres_type(name, field.dataType), nullable=field.nullable)
        for name, field in zip(request.names, typed.schema.fields, strict=False)
    )
    return Analyzed(id=request.id, columns=tuple(columns))


def _schema(relation: Relation) -> str:
    return ", ".join(f"{ticked(column.name)} {column.type.spark}" for column in relation.columns)


def _postgres_type(name: str, kind: DataType) -> ColumnType:
    if isinstance(kind, ArrayType):
        element = _postgres_type(name, kind.elementType)
        if element.array:
            raise ValueError(f'column "{name}" would be an array of arrays, which is not supported')
        return ColumnType(element.name, element.precision, element.scale, array=True)
    if isinstance(kind, DecimalType):
        return ColumnType(TypeName.NUMERIC, kind.precision, kind.scale)
    if isinstance(kind, StructType) or type(kind) not in _TYPES:
        raise ValueError(f'column "{name}" has the type {kind.simpleString()}, which is not supported')
    return ColumnType(_TYPES[type(kind)])
