"""Keep the BRIN index on `_from` effective: request summaries of the block ranges that were written.

Every query for changes reads ranges without a summary in full, and Postgres summarises them only about once a minute.
The worker requests it after every `ROWS` rows, concurrently with the epochs and on a connection of its own. A failure
costs time but never a row, and is retried after the next rows.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import psycopg
import structlog

from service.protocol.ids import RelationId
from service.protocol.relation import from_index

ROWS: Final = 50_000
"""Reading this many rows without a summary takes a few milliseconds."""

log = structlog.get_logger("upkeep")


@dataclass
class PostgresUpkeep:
    """The port's `Upkeep`. Counts the rows written to each relation, and requests summaries in the background."""

    url: str = field(repr=False)
    written: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "upkeep"))
    _running: "Future[None] | None" = None

    def wrote(self, relation: RelationId, rows: int) -> None:
        """Count the rows of a durable epoch."""
        self.written[relation] = self.written.get(relation, 0) + rows

    def look(self) -> None:
        """Start the summaries that are due, unless the last round is still running."""
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
