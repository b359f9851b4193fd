"""The length of a varchar column and the default of a column (expand).

Revision ID: 0035
Revises: 0034
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.relation_column add column length integer, add column default_value text")


def downgrade() -> None:
    op.execute("alter table tidefill.relation_column drop column length, drop column default_value")
