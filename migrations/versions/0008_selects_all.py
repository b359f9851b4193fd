"""Whether a logical view selects `*`, so that no text is parsed while its table is locked (expand).

Revision ID: 0008
Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.relation add column selects_all boolean")


def downgrade() -> None:
    op.execute("alter table tidefill.relation drop column selects_all")
