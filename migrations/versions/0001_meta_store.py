"""The meta store's tables (expand).

The text of the DDL never changes: the models describe the newest schema, and this is the first one. The views of
`rw_catalog` are in `migrations/rw_catalog.sql`.

Revision ID: 0001
Revises:
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text())
    op.execute("create schema rw_catalog")


def downgrade() -> None:
    op.execute("drop schema rw_catalog cascade")
    op.execute("""
        drop table tidefill.audit_entry, tidefill.event, tidefill.api_token, tidefill.idempotency_key,
            tidefill.statement, tidefill.request, tidefill.launch, tidefill.worker, tidefill.limit_change,
            tidefill.adaptive_limit, tidefill.scan_progress, tidefill.backfill_position, tidefill.actor,
            tidefill.fragment, tidefill.snapshot_backfill, tidefill.job, tidefill.source_cleanup, tidefill.source,
            tidefill.cleanup, tidefill.stored_index, tidefill.view_reference, tidefill.relation_column,
            tidefill.relation, tidefill.command, tidefill.barrier, tidefill.graph, tidefill.leader_lease,
            tidefill.schema_floor, tidefill.secret, tidefill.system_parameter;
        drop function tidefill.event_is_append_only(), tidefill.audit_entry_is_append_only();
        drop sequence tidefill.statement_id, tidefill.key_claim, tidefill.graph_id;
    """)
