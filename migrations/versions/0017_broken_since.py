"""The time at which a followed table broke (expand).

A service of the previous release does not read the column, and leaves it null for the tables that break under it.

Revision ID: 0017
Revises: 0016
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.fragment add column broken_since timestamptz")


def downgrade() -> None:
    op.execute("alter table tidefill.fragment drop column broken_since")
