"""A graph's table scans, as an executor of a test has them."""

from functools import partial

from pyspark.sql import SparkSession

from service.protocol.plan import FragmentKind
from workers.graph import GraphExecutor
from workers.runners.port import Join
from workers.runners.stage_scan import StageScan


def table_scans(spark: SparkSession) -> dict[FragmentKind, Join]:
    """Return what runs table scans, and nothing else."""
    return {FragmentKind.STREAM_SCAN: partial(StageScan.join, spark, {}.__getitem__)}


def scans_of(executor: GraphExecutor) -> list[StageScan]:
    """Return the scans that a graph has now."""
    return [runner for runner in executor.runners.values() if isinstance(runner, StageScan)]
