"""The failures to build the index of a snapshot job's table: number, error and time of the next try (expand).

A service of the previous release does not read the columns, and retries for ever.

Revision ID: 0019
Revises: 0018
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        alter table tidefill.snapshot_backfill
            add column index_failures integer not null default 0,
            add column index_error text,
            add column index_due timestamptz
    """)


def downgrade() -> None:
    op.execute("""
        alter table tidefill.snapshot_backfill
            drop column index_failures, drop column index_error, drop column index_due
    """)
