"""Schemas between Arrow and Spark."""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow batches: timestamps without a zone stay without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
