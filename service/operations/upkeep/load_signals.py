"""Measure the load signals of adaptive limits concurrently, each with its own timeout."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from service.domain.adaptive import Reading, Signal
from service.domain.errors import Invalid, MetaError, Unavailable
from service.domain.health import failed, of_active_queries, of_connections, of_http, of_lag, of_sql
from service.domain.parameters import SystemParameters
from service.domain.probes import parse_probe_url
from service.operations.world import World
from service.ports.health import ProbeFailed
from service.ports.sources import Address

_SQL_GRACE_SECONDS: Final = 3.0
"""The time in addition to the query's timeout: for the connection and the network."""
_SOURCE_SECONDS: Final = 3.0
"""The timeout of an external database. A slower one counts as overloaded."""
_WORDS_MAX: Final = 200


async def measured(world: World, parameters: SystemParameters, *, url: str, query: str) -> Sequence[Reading]:
    """Return the readings of the enabled signals. `url` and `query` are the probes, empty if there are none."""
    looks: list[Coroutine[Any, Any, Sequence[Reading]]] = []
    if parameters.backfill_auto_replication_lag_mb or parameters.backfill_auto_connections_percent:
        looks.append(_store(world, parameters))
    if url:
        looks.append(_http(world, parameters, url))
    if query:
        looks.append(_sql(world, parameters, query))
    return [reading for found in await asyncio.gather(*looks) for reading in found]


async def measured_outside(world: World, parameters: SystemParameters, at: Address) -> Sequence[Reading]:
    """Return the readings of the enabled signals of an external database."""
    lag_mb = parameters.backfill_auto_source_replication_lag_mb
    most = parameters.backfill_auto_source_active_queries
    if not (lag_mb or most):
        return []
    try:
        async with asyncio.timeout(_SOURCE_SECONDS):
            found = await world.external.servers.load(at)
    except (TimeoutError, Invalid, Unavailable) as error:
        said = _words(error) if isinstance(error, MetaError) else f"no answer within {_SOURCE_SECONDS:.0f} s"
        return [failed(Signal.SOURCE_ACTIVE_QUERIES if most else Signal.SOURCE_REPLICATION_LAG, said)]
    readings: list[Reading] = []
    if lag_mb:
        readings.append(of_lag(found.lag_bytes, bound_mb=lag_mb, signal=Signal.SOURCE_REPLICATION_LAG))
    if most:
        readings.append(of_active_queries(found.active, bound=most))
    return readings


async def _store(world: World, parameters: SystemParameters) -> Sequence[Reading]:
    lag_mb, percent = parameters.backfill_auto_replication_lag_mb, parameters.backfill_auto_connections_percent
    try:
        found = await world.state_store.gauge.measure()
    except Unavailable as error:
        signal = Signal.CONNECTIONS if percent else Signal.REPLICATION_LAG
        return [failed(signal, str(error)[:_WORDS_MAX])]
    readings: list[Reading] = []
    if lag_mb:
        readings.append(of_lag(found.lag_bytes, bound_mb=lag_mb))
    if percent:
        readings.append(of_connections(found.connections, most=found.connections_max, bound_percent=percent))
    return readings


async def _http(world: World, parameters: SystemParameters, text: str) -> Sequence[Reading]:
    url = parse_probe_url(text, pointer="backfill_auto_probe_http")
    try:
        status = await world.external.http_probe.status(url, timeout_ms=parameters.backfill_auto_probe_http_timeout_ms)
    except ProbeFailed as error:
        return [failed(Signal.HTTP_PROBE, str(error))]
    return [of_http(status, expected=parameters.backfill_auto_probe_http_status, shown=url.shown)]


async def _sql(world: World, parameters: SystemParameters, query: str) -> Sequence[Reading]:
    timeout_ms = parameters.backfill_auto_probe_sql_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000 + _SQL_GRACE_SECONDS):
            found = await world.state_store.reader.query(query, row_limit=1, timeout_ms=timeout_ms)
    except TimeoutError:
        return [failed(Signal.SQL_PROBE, f"the query did not answer within {timeout_ms} ms")]
    except (Invalid, Unavailable) as error:
        return [failed(Signal.SQL_PROBE, f"the query failed: {_words(error)}")]
    if found.truncated:
        return [failed(Signal.SQL_PROBE, "the query did not give one value")]
    return [of_sql(found.rows, largest=parameters.backfill_auto_probe_sql_max)]


def _words(error: MetaError) -> str:
    return str(error).partition("\n")[0][:_WORDS_MAX]
