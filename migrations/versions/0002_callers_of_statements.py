"""The caller of a statement, so that callers take turns (expand).

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.statement add column caller text")


def downgrade() -> None:
    op.execute("alter table tidefill.statement drop column caller cascade")
