"""The one order in which transactions lock rows of the meta store, so that no two of them wait for each other.

1. A transaction locks rows in the order of `LOCK_ORDER`, table by table. It may return to a table that it has locked
   before. Rows of one table are locked in the order of their keys. What is locked: by SELECT .. FOR, by UPDATE and
   DELETE, and by INSERT .. ON CONFLICT, which waits for a concurrent insert of the same key.
2. A job's row comes first. A transaction that moves several jobs, or moves jobs among other changes, locks all of them
   with `Jobs.hold_all` or `Catalog.hold` before anything else. Both lock the jobs' fragments too.
3. A foreign key locks the row that it refers to with FOR KEY SHARE, at any time in a transaction. This conflicts only
   with FOR UPDATE and DELETE. So rows that others refer to are locked with FOR NO KEY UPDATE (`key_share=True`), except
   in `LOCKED_FOR_UPDATE`.
4. Where order cannot be had, SKIP LOCKED avoids the wait, and the next tick does the rest.

`tests/support/lock_order.py` checks this in every transaction of the tests. A deadlock that happens nevertheless is
answered by `service.operations.retrying`.
"""

from typing import Final

RELATION_ITSELF: Final = "relation, explicitly"
"""The row of a source or a logical view, which has no job, locked by SELECT .. FOR."""

LOCK_ORDER: Final = (
    "leader_lease",
    "job",
    RELATION_ITSELF,
    "fragment",
    "slow_view",
    "snapshot_backfill",
    "source",
    "actor",
    "backfill_position",
    "scan_progress",
    "relation",
    "relation_column",
    "view_reference",
    "stored_index",
    "secret",
    "lake_source",
    "source_cleanup",
    "adaptive_limit",
    "limit_change",
    "worker",
    "request",
    "graph",
    "barrier",
    "launch",
    "system_parameter",
    "idempotency_key",
    "api_token",
    "audit_entry",
    "event",
)

SINGLE_WRITER: Final = frozenset({"cleanup", "command", "statement", "schema_floor", "unstoppable_statement"})
"""Users' transactions only insert into these. The loop of one graph alone changes a row, so nobody waits for it. A
clean-up is inserted under the lock of its relation's job.
"""

LOCKED_FOR_UPDATE: Final = frozenset({"job", "graph"})
"""Tables with rows that others refer to and that are locked FOR UPDATE.

A job, because KEY SHARE keeps it in its graph. A graph, because no command may be queued while a partial graph begins
or ends.
"""

DELETED_LAST: Final = frozenset({"source", "secret", "view_reference"})
"""A dropped source is deleted after its last clean-up, with its own password and what referred to it. Nobody else locks
these rows by then.
"""
