"""The sessions that keep a dropped relation's tables from their removal (expand).

Revision ID: 0033
Revises: 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.cleanup add column held text")


def downgrade() -> None:
    op.execute("alter table tidefill.cleanup drop column held")
