"""Keeping the index on `_from` useful: block ranges written since its last summary are read whole by every look at
changes.

Postgres summarises them by itself only about once a minute. Here it is asked to after every so many rows, beside the
epochs, on a connection of its own; what fails is tried again after the next rows, and costs time but never a row.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import psycopg
import structlog

from service.protocol.ids import RelationId
from service.protocol.relation import from_index

ROWS: Final = 50_000
"""Reading so many rows that are not summarised takes a few milliseconds."""

log = structlog.get_logger("upkeep")


@dataclass
class Upkeep:
    """Counts rows written by relation, and has the index summarised in the background."""

    url: str = field(repr=False)
    written: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "upkeep"))
    _running: "Future[None] | None" = None

    def wrote(self, relation: RelationId, rows: int) -> None:
        """Count rows of an epoch that is durable."""
        self.written[relation] = self.written.get(relation, 0) + rows

    def look(self) -> None:
        """Start what is due, unless the last round is still under way."""
        if self._running is not None and not self._running.done():
            return
        due = [relation for relation, rows in self.written.items() if rows >= ROWS]
        if due:
            self.written = {relation: rows for relation, rows in self.written.items() if relation not in due}
            self._running = self._thread.submit(self._summarise, due)

    def _summarise(self, relations: list[RelationId]) -> None:
        try:
            with psycopg.connect(self.url, application_name="tidefill-upkeep", autocommit=True) as connection:
                connection.execute("set lock_timeout = '1s'")
                for relation in relations:
                    name = from_index(relation)
                    connection.execute(
                        "select brin_summarize_new_values(to_regclass(%s)) where to_regclass(%s) is not null",
                        [name, name],
                    )
        except psycopg.Error as error:
            log.warning("upkeep.failed", error=str(error))
