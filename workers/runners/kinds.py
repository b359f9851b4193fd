"""Map every kind of fragment to its runner. A new kind is a new runner and one line here."""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import SparkSession

from service.protocol.cdc import SourceConnection
from service.protocol.ids import SourceId
from service.protocol.plan import FragmentKind, FragmentPlan, JobPlan, Prefix, TableScanPlan
from workers.connectors.kinds import SecretOf
from workers.runners.lake_scan import LakeScan
from workers.runners.operators import Operator
from workers.runners.port import FragmentRunner, Join, Place
from workers.runners.source_scan import SourceScans
from workers.runners.split_scan import SplitScan
from workers.runners.stage_scan import StageScan


def joins_of(
    spark: SparkSession, connection_of: Callable[[SourceId], SourceConnection], secret_of: SecretOf
) -> Mapping[FragmentKind, Join]:
    """Return how to make the runner of each kind of fragment. `connection_of` returns how to reach a source."""
    return {
        FragmentKind.STREAM_SCAN: partial(_scan, spark, secret_of),
        FragmentKind.OPERATOR: partial(Operator.join, spark),
        FragmentKind.SOURCE_SCAN: partial(_source_scan, secret_of),
        FragmentKind.CDC_SCAN: partial(SourceScans.join, spark, connection_of, secret_of),
    }


def _source_scan(
    secret_of: SecretOf, runners: Mapping[Place, FragmentRunner], job: JobPlan, fragment: FragmentPlan, now: float
) -> FragmentRunner:
    if job.relation.lake is not None:
        return LakeScan.join(secret_of, runners, job, fragment, now)
    return SplitScan.join(runners, job, fragment, now)


def _scan(
    spark: SparkSession,
    secret_of: SecretOf,
    runners: Mapping[Place, FragmentRunner],
    job: JobPlan,
    fragment: FragmentPlan,
    now: float,
) -> FragmentRunner:
    assert isinstance(fragment, TableScanPlan)
    if isinstance(fragment.query, Prefix):
        return Operator.join(spark, runners, job, fragment, now)
    return StageScan.join(spark, secret_of, runners, job, fragment, now)
