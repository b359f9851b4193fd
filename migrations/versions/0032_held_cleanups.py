"""Who keeps a dropped relation's tables from their removal (expand).

Revision ID: 0032
Revises: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.cleanup add column held text")


def downgrade() -> None:
    op.execute("alter table tidefill.cleanup drop column held")
