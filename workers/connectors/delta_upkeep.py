"""Keep a Delta table that tidefill alone changes in shape: few files, and none that nobody reads any more.

A commit of changes writes files anew that have a row of it, and adds a small one. After so many versions the small ones
are joined, which changes no row. Files that newer versions have replaced are removed once they are older than the
retention, and than the oldest version that an epoch may still read. What was done last is in the table's log, so no
restart repeats it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from service.protocol.delta import DeltaOptions
from workers.connectors.delta_files import Files, delta_table
from workers.connectors.limited import CALLER
from workers.connectors.port import KeptVersions, RefusedTableError

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)
JOIN_VERSIONS: Final = 64
"""After so many versions the small files are joined."""
FILE_BYTES: Final = 32 << 20
"""A larger file stays as it is, so a join takes a few seconds at most."""
_HOUR: Final = 3600.0
_JOINED: Final = ".joined"
_VACUUMED: Final = ".vacuumed"
"""What follows the app's name in the name of a transaction: its version is a version of the table, or a Unix time."""
_vacuuming: Final = set[str]()


class Run(Protocol):
    """Makes a call, here or elsewhere."""

    def __call__(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return its result."""
        ...


def keep_up(options: DeltaOptions, kept: KeptVersions, run: Run, at_large: Run) -> None:
    """Do what is due. `kept` is asked only if something may be removed. A failure costs space, and nothing else.

    Files are joined by `run`, and removed by `at_large`.
    """
    if not options.upsert:
        return  # others may write into it, too
    try:
        if run(joined, options) and options.location not in _vacuuming:
            versions, context = kept(), copy_context()
            _vacuuming.add(options.location)
            work = partial(context.run, _vacuumed, options, versions, at_large)
            threading.Thread(target=work, daemon=True, name="vacuum").start()
    except (OSError, DeltaError, RefusedTableError) as error:
        log.warning("lake.not_kept_up", location=options.location, error=str(error))


def joined(options: DeltaOptions) -> bool:
    """Join small files, if it is due. Return whether it is time to remove files."""
    table = delta_table(options)
    if table.version() - (table.transaction_version(f"{options.app}{_JOINED}") or 0) >= JOIN_VERSIONS:
        _join(table, options)
    since = time.time() - (table.transaction_version(f"{options.app}{_VACUUMED}") or 0)  # noqa: TID251 - a file's age
    return since >= max(options.retention_seconds / 4, _HOUR)


def retention_hours(options: DeltaOptions, oldest: float | None, now: float) -> int:
    """Return how old files may become, in hours. `oldest` is the Unix time of the oldest version that may be read.

    What is prepared and not committed is younger than two commit intervals.
    """
    age = 0.0 if oldest is None else now - oldest
    return int(max(options.retention_seconds, 2 * options.commit_seconds, age) // _HOUR) + 1


def _join(table: DeltaTable, options: DeltaOptions) -> None:
    done = Transaction(f"{options.app}{_JOINED}", table.version())
    table.optimize.compact(
        target_size=FILE_BYTES, max_concurrent_tasks=1, commit_properties=CommitProperties(app_transactions=[done])
    )


def _vacuumed(options: DeltaOptions, kept: Sequence[int], run: Run) -> None:
    # No commit waits for it.
    CALLER.set(f"{CALLER.get()} vacuums")
    try:
        removed, hours = run(vacuum, options, kept)
        log.info("lake.vacuumed", location=options.location, files=removed, hours=hours)
    except (OSError, DeltaError, RefusedTableError) as error:
        log.warning("lake.not_kept_up", location=options.location, error=str(error))
    finally:
        _vacuuming.discard(options.location)


def vacuum(options: DeltaOptions, kept: Sequence[int]) -> tuple[int, int]:
    """Remove old files. Return how many, and how old they are in hours."""
    now = time.time()  # noqa: TID251 - a file's age
    table = delta_table(options)
    hours = retention_hours(options, _age(options, kept), now)
    files = Files.of(options)
    old = table.vacuum(retention_hours=hours, dry_run=not files.in_store, enforce_retention_duration=False)
    # A link in a folder leads to files of others, which the log of this table may call removed.
    removed = len(old) if files.in_store else sum(map(files.removed, old))
    done = CommitProperties(app_transactions=[Transaction(f"{options.app}{_VACUUMED}", int(now))])
    table = delta_table(options)
    table.create_write_transaction([], "append", table.schema(), commit_properties=done)
    return removed, hours


def _age(options: DeltaOptions, kept: Sequence[int]) -> float | None:
    """Return when the oldest of some versions was committed. Raises FileNotFoundError if the log has it no more."""
    if not kept:
        return None
    return (Files.of(options).info(f"_delta_log/{min(kept):020}.json").mtime_ns or 0) / 1e9
