"""A job's backfill order, and the scans that wait for their place in it (expand).

A leader of the previous release creates jobs without an order and releases no scan. A waiting scan waits until a leader
of this release takes over.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ORDER = """
-- Edges between relations: [[before, after], ...].
alter table tidefill.job add column backfill_order jsonb not null default '[]';
create index fragment_waiting on tidefill.fragment (job) where waiting;
"""


def upgrade() -> None:
    op.execute(ORDER)


def downgrade() -> None:
    op.execute("drop index tidefill.fragment_waiting")
    op.execute("alter table tidefill.job drop column backfill_order")
