"""Read the log of another program's Delta table in a process whose memory is bounded (I13).

A checkpoint of a megabyte may take gigabytes once it is read, and only reading it tells.
"""

import threading
from collections.abc import Callable
from functools import partial
from subprocess import TimeoutExpired
from typing import Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from service.protocol.delta import DeltaPlace
from workers.connectors.delta_files import delta_table, in_a_line
from workers.connectors.delta_log import check_mapping, check_protocol, rows_of
from workers.connectors.limited import EndedError, limited
from workers.connectors.port import RefusedTableError, TableShape

T = TypeVar("T")
MEMORY: Final = 3 << 30
"""The most memory, in bytes, that a process may allocate. A log of half a million files takes about as much."""
COLUMNS_MAX: Final = 20_000
SCHEMA_MAX: Final = 16 << 20
_ASKED: Final = threading.BoundedSemaphore(4), 50.0
"""The most processes that look at tables for statements, and how many seconds each may take. One caller's statements
have two of them at most, and wait for somewhat longer (`operations.sources.lake.LOOK_WAIT`).
"""


def shape_of(place: DeltaPlace, *, memory: int = MEMORY) -> TableShape:
    """Return what a table is now.

    Raises RefusedTableError with the reason if it cannot be read in place, and OSError if its storage is away.
    """
    return looked(place.location, partial(shape_here, place), memory=memory)


def looked(location: str, look: Callable[[], T], *, memory: int = MEMORY) -> T:
    """Return what a look at a table finds for a statement. Raises its errors, and those of `shape_of`."""
    places, seconds = _ASKED
    try:
        with places:
            return limited(memory, seconds, look)
    except TimeoutExpired:
        raise RefusedTableError(f"the log of {location} takes more than {seconds:.0f} s to read") from None
    except MemoryError:
        most = f"{memory >> 20} MB of memory"
        raise RefusedTableError(f"the log of {location} takes more than {most} to read") from None
    except (DeltaError, EndedError) as error:
        raise RefusedTableError(f"the log of {location} cannot be read: {error}") from error


def shape_here(place: DeltaPlace) -> TableShape:
    """See `shape_of`. It takes what memory the log takes."""
    table = _newest(place)
    check_protocol(list(table.protocol().reader_features or ()))
    check_mapping(table.metadata().configuration)
    if (number := len(table.schema().fields)) > COLUMNS_MAX:
        raise RefusedTableError(f"it has {number} columns, and at most {COLUMNS_MAX} can be read")
    if (size := len(schema := table.schema().to_json())) > SCHEMA_MAX:
        raise RefusedTableError(f"its schema has {size >> 20} MB, and at most {SCHEMA_MAX >> 20} MB can be read")
    return TableShape(table.version(), schema, rows_of(table))


def _newest(place: DeltaPlace) -> DeltaTable:
    try:
        with in_a_line():
            return delta_table(place)
    except TableNotFoundError:
        raise RefusedTableError(f"there is no Delta table at {place.location}, as the worker sees it") from None
    except (OSError, DeltaError) as error:
        raise RefusedTableError(f"{place.location} cannot be read by the worker: {error}") from error
