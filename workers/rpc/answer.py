"""Answer the service's requests outside the barrier sequence (`service.protocol.request`)."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from service.protocol.ids import Generation, RequestId
from service.protocol.request import (
    CheckPlace,
    ClaimTarget,
    DescribeTable,
    Done,
    Rejected,
    ReleaseTarget,
    Request,
    Response,
    Select,
    TableDescribed,
    Verify,
)
from workers.connectors.in_place import located
from workers.connectors.kinds import CLAIMS, LAKES, SecretOf, options_of, sink_of
from workers.connectors.places import check_roots, check_there
from workers.connectors.port import MovedError
from workers.rpc.apart import late
from workers.rpc.select import select
from workers.rpc.verify import verify
from workers.runners.failure import explain
from workers.spark.bounded import bounded_jobs
from workers.state_store.port import TooSlowError, VersionedStore

_RAISED: Final = re.compile(r"^[\w.]+(?:Error|Exception): .*$", re.MULTILINE)
_OURS: Final = re.compile(r"^workers\.[\w.]+: ")
"""The name of an error of this package, which says nothing to users."""
Computed = TypeVar("Computed", Verify, Select)


def answer(
    spark: SparkSession,
    reader: Callable[[Verify | Select], VersionedStore],
    secret_of: SecretOf,
    wanted: Callable[[RequestId], bool],
    request: Request,
    *,
    parallelism: int,
) -> Response:
    """Answer one request. Every error becomes a `Rejected` answer. An unwanted request ends soon."""
    try:
        match request:
            case ClaimTarget():
                return _claimed(request, secret_of)
            case DescribeTable() | CheckPlace():
                return _looked(request, secret_of)
            case ReleaseTarget(connector=connector):
                sink_of(connector, secret_of, request.relation, Generation(0)).clean_up(purge=request.purge)
                return Done(id=request.id)
            case Verify() | Select():
                with _within(spark, request, wanted):
                    return _computed(spark, reader(request), request, secret_of, parallelism)
    except MovedError as error:
        return Rejected(id=request.id, error=str(error), again=True)
    except PySparkException as error:
        return Rejected(id=request.id, error=_said(error))
    except Exception as error:  # noqa: BLE001 - the service must learn of any error
        return Rejected(id=request.id, error=explain(error)[1])


def _said(error: PySparkException) -> str:
    """Return the message. A task's is the last line of its traceback, which names paths of this machine."""
    raised = _RAISED.findall(str(error)) if isinstance(error, PythonException) else []
    return _OURS.sub("", raised[-1]) if raised else error.getMessage() or explain(error)[1]


@contextmanager
def _within(spark: SparkSession, request: Verify | Select, wanted: Callable[[RequestId], bool]) -> Generator[None]:
    """End what takes too long, or is not wanted any more, with a ValueError."""
    try:
        with bounded_jobs(spark, request.timeout_ms, request.timeout_ms / 1000, partial(wanted, request.id)):
            yield
    except TooSlowError:
        raise ValueError(late(request)) from None


def _computed(
    spark: SparkSession, store: VersionedStore, request: Verify | Select, secret_of: SecretOf, parallelism: int
) -> Response:
    if isinstance(request, Verify):
        return verify(spark, store, _located(request, secret_of), parallelism=parallelism)
    return select(spark, store, _located(request, secret_of), parallelism=parallelism)


def _located(request: Computed, secret_of: SecretOf) -> Computed:
    stages = tuple(
        one.model_copy(update={"relations": tuple(located(each, secret_of) for each in one.relations)})
        for one in request.stages
    )
    return request.model_copy(update={"stages": stages, "relation": located(request.relation, secret_of)})


def _looked(request: DescribeTable | CheckPlace, secret_of: SecretOf) -> Response:
    connector = request.connector
    options = options_of(connector, secret_of)
    try:
        check_roots(options, request.roots)
        if isinstance(request, CheckPlace):
            check_there(options)
            return Done(id=request.id)
        found = LAKES[connector.name](options)
    except ValueError as error:
        return Rejected(id=request.id, error=str(error))
    return TableDescribed(id=request.id, version=found.version, table_schema=found.schema, rows=found.rows)


def _claimed(request: ClaimTarget, secret_of: SecretOf) -> Response:
    connector = request.connector
    options = options_of(connector, secret_of)
    try:
        check_roots(options, request.roots)
        CLAIMS[connector.name](options, request.relation)
    except ValueError as error:
        return Rejected(id=request.id, error=str(error))
    return Done(id=request.id)
