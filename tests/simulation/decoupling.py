"""I10: the graphs of snapshot jobs never delay the database graph, however slow or stuck they are.

Under faults this can be said of calm times only. Whatever else may hold the database graph up (a fault anywhere but in
a job's own graph, an operator, a failing query of its own) excuses it for as long as the consequences may last. When
nothing excuses it, it commits within `allowed` seconds of its last commit, and its generation does not end.
"""

import re
from dataclasses import dataclass
from typing import Final

from service.domain.graph import GraphStatus
from service.protocol.epoch import NEVER
from service.protocol.ids import DATABASE_GRAPH, Epoch
from tests.simulation.kernel import Kernel
from tests.support.fake_meta_tables import Tables

BRIEFLY: Final = 15.0
"""Seconds: a leader that resigned is followed, or a generation, with all the back-off there is."""
LONG: Final = 60.0
"""A message that was delayed has come, every lease and deadline has passed, and their consequences are over."""
_OWN: Final = re.compile(r"graph[- ](\d+)")
"""The worker's lane and the service's loop of one graph."""


def of_a_job(task: str) -> bool:
    """Whether a task by this name works for the graph of a snapshot job, and for nothing else."""
    named = _OWN.fullmatch(task)
    return named is not None and int(named[1]) != DATABASE_GRAPH


@dataclass
class Decoupling:
    """Looks at the database graph after every transaction. `allowed` is far above what a calm epoch takes."""

    kernel: Kernel
    tables: Tables
    allowed: float
    excused_until: float = 0.0
    committed: Epoch = NEVER
    committed_at: float = 0.0
    running: bool = False
    calm: float = 0.0
    """Seconds of which it could be said."""

    def excuse(self, seconds: float) -> None:
        """Something has happened that may hold the database graph up for so long."""
        self.excused_until = max(self.excused_until, self.kernel.seconds + seconds)

    def look(self) -> None:
        """Assert that nothing has held the database graph up."""
        row, now = self.tables.graphs[DATABASE_GRAPH], self.kernel.seconds
        runs = row.status is GraphStatus.RUNNING
        if self.running and not runs:
            assert now <= self.excused_until, f"I10: the database graph was ended by {row.last_error}, and by no fault"
        if self.running:
            late = now - max(self.committed_at, self.excused_until)
            assert late <= self.allowed, (
                f"I10: the database graph has not committed for {late:.1f} s, and no fault holds it"
            )
        if row.committed != self.committed:
            self.calm += max(0.0, now - max(self.committed_at, self.excused_until))
            self.committed, self.committed_at = row.committed, now
        self.running = runs and row.committed != NEVER
