"""The capabilities of a table format. The service checks them before it accepts a command, workers before they plan it.

A table format stores relations as versions of rows. Each has a service side (`service.ports.state_store`), which
creates, publishes, fences, rolls back, vacuums and drops tables, and a worker side (`workers.state_store.port`), which
reads and writes rows at an epoch.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a format beyond reading and writing rows."""

    dml: bool = False
    """It runs INSERT, UPDATE and DELETE. Without it, tables change only by following a source."""
    store_engine: bool = False
    """It computes queries with a `Pushdown` itself, so that no rows travel. Without it, Spark computes every query."""
    index_bounds: bool = False
    """It finds a page's upper key without reading the rows before it. Without it, every page reads what is left of its
    block, so blocks have one vnode.
    """
    sql_reader: bool = False
    """Users' SELECTs run inside it."""


POSTGRES: Final = Capabilities(dml=True, store_engine=True, index_bounds=True, sql_reader=True)
