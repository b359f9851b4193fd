"""The length of a varchar column and the default of a column (expand).

Revision ID: 0032
Revises: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.relation_column add column length integer, add column default_value text")


def downgrade() -> None:
    op.execute("alter table tidefill.relation_column drop column length, drop column default_value")
