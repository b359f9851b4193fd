"""Answer the service's requests outside the barrier sequence (`service.protocol.request`)."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.protocol.request import Rejected, Request, Verified
from workers.rpc.verify import verify
from workers.runners.failure import explain
from workers.state_store.port import VersionedStore


def answer(
    spark: SparkSession, reader: Callable[[Request], VersionedStore], request: Request, *, parallelism: int
) -> Verified | Rejected:
    """Answer one request. Every error becomes a `Rejected` answer."""
    try:
        return verify(spark, reader(request), request, parallelism=parallelism)
    except PySparkException as error:
        return Rejected(id=request.id, error=error.getMessage() or explain(error)[1])
    except Exception as error:  # noqa: BLE001 - the service must learn of any error
        return Rejected(id=request.id, error=explain(error)[1])
