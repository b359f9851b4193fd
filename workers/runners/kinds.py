"""Every kind of fragment and what runs it: a new kind is a runner, and a line here."""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import SparkSession

from service.protocol.cdc import SourceConnection
from service.protocol.ids import SourceId
from service.protocol.plan import FragmentKind
from workers.runners.port import Join
from workers.runners.source_scan import SourceScans
from workers.runners.table_scan import TableScan


def joins_of(spark: SparkSession, connection_of: Callable[[SourceId], SourceConnection]) -> Mapping[FragmentKind, Join]:
    """Return what runs each kind of fragment of a graph. `connection_of` says how to reach a source."""
    return {
        FragmentKind.STREAM_SCAN: partial(TableScan.join, spark),
        FragmentKind.CDC_SCAN: partial(SourceScans.join, spark, connection_of),
    }
