"""Define system parameters (`ALTER SYSTEM SET`) and session variables (`SET`): names, defaults and allowed values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final, Self

from service.domain.adaptive import AUTO, Bounds
from service.domain.errors import Invalid, NotFound
from service.domain.parallelism import ACTORS_MAX, Fixed, parse_parallelism
from service.protocol.barrier import ScanLimits
from service.protocol.stage import EngineChoice

INTEGER_MAX: Final = (1 << 31) - 1
"""Every number here is a Postgres integer, but a number of stored rows."""
BIGINT_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SystemParameters:
    """Settings of the whole service. The meta store holds them and the leader reads them at every tick."""

    barrier_interval_ms: int = 1000
    """How often a barrier ends an epoch. Readers then see the changes of that epoch."""
    checkpoint_frequency: int = 1
    """One of this many barriers is a checkpoint. Readers see changes after a checkpoint commits."""
    max_concurrent_creating_streaming_jobs: int = 1
    """How many jobs are created at the same time; further jobs queue. 0 is no limit."""
    pause_on_next_bootstrap: bool = False
    """Whether the next recovery begins paused. The recovery resets it to false."""
    backfill_auto_floor: int = 100
    """The lowest limit that `backfill_rate_limit = 'auto'` chooses, in rows per second and actor."""
    backfill_auto_ceiling: int = 1_000_000
    """The highest limit that `auto` chooses, in rows per second and actor."""
    backfill_auto_latency_target_ms: int = 0
    """How long a barrier may take before `auto` lowers the limit. 0 stands for the barrier interval."""
    backfill_auto_replication_lag_mb: int = 64
    """How far a replica of the state store may lag. 0 ignores the lag."""
    backfill_auto_connections_percent: int = 90
    """How many percent of the state store's connections may be in use. 0 ignores them."""
    backfill_auto_probe_http: str = ""
    """URL of an HTTP health probe, shown without its secret parts. Empty is no probe."""
    backfill_auto_probe_http_status: int = 200
    """The status of a healthy answer."""
    backfill_auto_probe_http_timeout_ms: int = 1_000
    """How long the HTTP probe may take; a longer one is unhealthy."""
    backfill_auto_probe_sql: str = ""
    """A SELECT of one value as a health probe: a boolean, or a number. Empty is no probe."""
    backfill_auto_probe_sql_max: int = 0
    """The largest number that is healthy."""
    backfill_auto_probe_sql_timeout_ms: int = 1_000
    """How long the SQL probe may take; a longer one is unhealthy."""
    backfill_auto_source_replication_lag_mb: int = 64
    """How far a replica of an external database that a table follows may lag. 0 ignores the lag."""
    backfill_auto_source_active_queries: int = 50
    """How many queries may be active in such a database. 0 ignores them."""
    dml_epoch_budget_ms: int = 2_000
    """How long the INSERTs, UPDATEs and DELETEs of one epoch may take together. The rest waits for the next epoch."""
    dml_statement_timeout_ms: int = 10_000
    """How long a statement with an epoch to itself may take. Every barrier waits for it.

    A statement updates some 500,000 rows in the default time.
    """
    row_limit_max: int = 100_000
    """The largest `row_limit` of a session."""
    statement_timeout_max_ms: int = 600_000
    """The longest `statement_timeout` of a session."""
    own_graph_rows: int = 10_000
    """A view whose stage reads more rows than this for each change is created in a graph of its own: it delays no
    statement, and may lag. Such a stage is a window without PARTITION BY, for example.
    """
    stage_timeout_ms: int = 30_000
    """How long the changes of a created view may take in epochs for which every statement waits. The seconds of
    each epoch beyond 2 are counted, and a fifth of the time since is taken off. A view that takes longer moves into a
    graph of its own. 0 is no limit, and Spark may always take 10 s. A new value counts from the next recovery on.
    Pages of joins under Arrangement count as well, and a view that takes longer while it is created fails. The next
    one of its caller starts when five times this limit has passed.
    """
    spark_history_rows: int = 100_000
    """From how many rows on Spark reads a history with `stage_engine = auto`. The state store reads a smaller one,
    because the jobs of Spark would take longer than their rows. A worker with executors of its own takes a tenth.
    """
    spark_changes_rows: int = 1_000_000
    """From how many changed rows of an epoch on Spark follows them with `stage_engine = auto`. The state store follows
    fewer ones: it looks up the rows that they concern. A worker with executors of its own takes a tenth.
    """
    creating_rows_max: int = 1_000_000_000
    """How many rows a view may store before it is created, those of its stages included. The creation of one with more
    is cancelled, because a join without an equality could fill the disk. 0 is no limit.
    """
    view_rows_max: int = 10_000_000_000
    """How many rows a created view may store, those of its stages included. One with more fails: it keeps its last
    rows until it is dropped, and follows no more changes. 0 is no limit.
    """
    serverless_workers_max: int = 0
    """How many serverless jobs have their own worker at the same time; further ones queue. 0 is no limit."""
    operator_creating_jobs_max: int = 0
    """How many views and sinks one operator may have queued and creating together. 0 is no quota."""
    operator_calls_max: int = 0
    """How many calls of one operator may be in progress in each service. 0 is no quota."""
    operator_result_bytes_max: int = 0
    """The largest result of an operator's query, in bytes as TIDEFILL_RESULT_BYTES_MAX counts. 0 is no quota."""
    viewer_calls_max: int = 0
    """How many calls of one viewer may be in progress in each service. 0 is no quota."""
    viewer_result_bytes_max: int = 0
    """The largest result of a viewer's query, in bytes as TIDEFILL_RESULT_BYTES_MAX counts. 0 is no quota."""

    @property
    def auto_bounds(self) -> Bounds:
        """Bounds of the adaptive limit. Concurrent ALTERs can leave floor > ceiling, so the floor is clamped."""
        return Bounds(min(self.backfill_auto_floor, self.backfill_auto_ceiling), self.backfill_auto_ceiling)

    def of_scans(self, *, shared: bool, apart: Sequence[str] = ()) -> ScanLimits:
        """Return what the workers need. Changes have a time limit where others wait for them, in a `shared` graph."""
        timeout_ms = self.stage_timeout_ms if shared else 0
        return ScanLimits(timeout_ms, self.spark_history_rows, self.spark_changes_rows, tuple(apart))

    @classmethod
    def of(cls, stored: Mapping[str, str]) -> Self:
        """Return the parameters from their stored texts; a parameter that is not stored has its default."""
        known = {name: parse_system_parameter(name, text) for name, text in stored.items() if name in SYSTEM}
        return cls(**known)  # type: ignore[arg-type]


SYSTEM: Final[Mapping[str, type]] = MappingProxyType(
    {field.name: type(field.default) for field in fields(SystemParameters)}
)
RANGES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "barrier_interval_ms": (50, 3_600_000),
        "checkpoint_frequency": (1, 10_000),
        "max_concurrent_creating_streaming_jobs": (0, 100_000),
        "serverless_workers_max": (0, 100_000),
        "backfill_auto_floor": (1, INTEGER_MAX),
        "backfill_auto_ceiling": (1, INTEGER_MAX),
        "backfill_auto_latency_target_ms": (0, 3_600_000),
        "backfill_auto_replication_lag_mb": (0, INTEGER_MAX),
        "backfill_auto_connections_percent": (0, 100),
        "backfill_auto_probe_http_status": (100, 599),
        "backfill_auto_probe_http_timeout_ms": (1, 10_000),
        "backfill_auto_probe_sql_max": (-INTEGER_MAX, INTEGER_MAX),
        "backfill_auto_probe_sql_timeout_ms": (1, 10_000),
        "backfill_auto_source_replication_lag_mb": (0, INTEGER_MAX),
        "backfill_auto_source_active_queries": (0, INTEGER_MAX),
        "dml_epoch_budget_ms": (100, 60_000),
        # Less than the five minutes after which the leader abandons a barrier.
        "dml_statement_timeout_ms": (100, 240_000),
        "row_limit_max": (1, 10_000_000),
        "own_graph_rows": (0, INTEGER_MAX),
        # Less than the five minutes after which the leader abandons a barrier.
        "stage_timeout_ms": (0, 240_000),
        "spark_history_rows": (0, INTEGER_MAX),
        "spark_changes_rows": (0, INTEGER_MAX),
        "creating_rows_max": (0, BIGINT_MAX),
        "view_rows_max": (0, BIGINT_MAX),
        "statement_timeout_max_ms": (1_000, INTEGER_MAX),
        "operator_creating_jobs_max": (0, 100_000),
        "operator_calls_max": (0, 100_000),
        "operator_result_bytes_max": (0, INTEGER_MAX),
        "viewer_calls_max": (0, 100_000),
        "viewer_result_bytes_max": (0, INTEGER_MAX),
    }
)
"""The smallest and the largest value of each number."""
BOUNDED: Final = {"row_limit": "row_limit_max", "statement_timeout": "statement_timeout_max_ms"}
"""Session variables, each with the system parameter that is its maximum."""

_KINDS: Final = ("index", "materialized_view", "sink", "source", "table")
"""Kinds of relations that have a parallelism variable. It has no effect for kinds without a scan."""
SESSION_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "backfill_rate_limit": "default",
        "background_ddl": "false",
        "enable_serverless_backfill": "false",
        "own_graph": "false",
        "stage_engine": EngineChoice.AUTO.value,
        "streaming_max_parallelism": "default",
        "streaming_parallelism": "default",
        **{f"streaming_parallelism_for_{kind}": "default" for kind in _KINDS},
        "streaming_parallelism_for_backfill": "default",
        "streaming_use_arrangement_backfill": "true",
        "streaming_use_snapshot_backfill": "true",
        "statement_timeout": "60000",
        "row_limit": "10000",
        "timezone": "UTC",
    }
)
_WORDS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"stage_engine": {one.value: one.value for one in EngineChoice}, "timezone": {"utc": "UTC", "etc/utc": "UTC"}}
)
"""The words that other session variables take, each with how it is stored."""
_TRUE: Final = frozenset({"true", "on", "yes", "1", "t"})
_FALSE: Final = frozenset({"false", "off", "no", "0", "f"})


def parse_system_parameter(name: str, text: str) -> int | bool | str:
    """Return the value of `name = text`. Raises NotFound for an unknown name and Invalid for a bad value."""
    if name not in SYSTEM:
        raise NotFound(f'unrecognized system parameter "{name}"', kind="parameter")
    if SYSTEM[name] is bool:
        return parse_bool(name, text)
    if SYSTEM[name] is str:
        return text.strip()
    low, high = RANGES[name]
    value = _parse_int(name, text, max(high, INTEGER_MAX))
    if not low <= value <= high:
        raise Invalid(f'"{name}" takes a value from {low} to {high}, not {value}', pointer=name)
    return value


def parse_session_variable(name: str, text: str) -> str:
    """Return the normalized text of a session variable's value. Raises Invalid.

    An unknown variable has no effect, as those that only RisingWave knows.
    """
    if name not in SESSION_DEFAULTS:
        return text.strip()
    lowered = text.strip().lower()
    if lowered == "default":
        return SESSION_DEFAULTS[name]
    if SESSION_DEFAULTS[name] in {"true", "false"}:
        return str(parse_bool(name, lowered)).lower()
    if name in _WORDS:
        return _parse_word(name, lowered)
    if name.startswith("streaming_parallelism"):
        return _parse_parallelism(name, lowered)
    return _parse_number(name, lowered)


def _parse_word(name: str, text: str) -> str:
    found = _WORDS[name].get(text)
    if found is None:
        words = " or ".join(f'"{word}"' for word in dict.fromkeys(_WORDS[name].values()))
        raise Invalid(f'only {words} is supported as "{name}"', pointer=name)
    return found


def bounded(name: str, text: str, parameters: SystemParameters) -> int:
    """Return the value of a session variable that has a maximum; a default above the maximum is reduced to it.

    Raises Invalid.
    """
    value, most = int(text), int(getattr(parameters, BOUNDED[name]))
    if value > most and text != SESSION_DEFAULTS[name]:
        message = f'"{name}" takes at most {most} (system parameter {BOUNDED[name]}), not {value}'
        raise Invalid(message, pointer=name)
    return min(value, most)


def _parse_number(name: str, text: str) -> str:
    if name == "backfill_rate_limit" and text == AUTO:
        return AUTO
    value = _parse_int(name, text)
    if name == "backfill_rate_limit":
        return "default" if value < 0 else str(value)
    if value < 1:
        raise Invalid(f'"{name}" takes `default` or a positive integer, not {value}', pointer=name)
    if name == "streaming_max_parallelism" and value > ACTORS_MAX:
        raise Invalid(f'"{name}" takes at most {ACTORS_MAX}, not {value}', pointer=name)
    return str(value)


def _parse_parallelism(name: str, text: str) -> str:
    if name == "streaming_parallelism_for_backfill" and not (text.isdecimal() and int(text) > 0):
        raise Invalid(
            "Only `default` or fixed backfill parallelism is supported here; adaptive backfill strategy is deferred to"
            " a later change.",
            pointer=name,
        )
    try:
        parallelism = parse_parallelism(text)
    except Invalid as error:
        raise Invalid(f'"{name}": {error}', pointer=name) from None
    return str(parallelism.actors) if isinstance(parallelism, Fixed) else str(parallelism)


def parse_bool(name: str, text: str) -> bool:
    """Return the boolean that a text means in Postgres. Raises Invalid."""
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise Invalid(f'"{name}" takes a boolean, not "{text}"', pointer=name)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")


def _parse_int(name: str, text: str, most: int = INTEGER_MAX) -> int:
    # Python's `int` accepts more than Postgres does: `1_000`, digits of any script.
    if _INTEGER.fullmatch(text.strip()) is None:
        raise Invalid(f'"{name}" takes an integer, not "{text}"', pointer=name)
    value = int(text)
    if abs(value) > most:
        raise Invalid(f'"{name}" takes at most {most}, not {value}', pointer=name)
    return value
