"""The reason why a created relation cannot be shown, such as its name being taken in schema public (expand).

A service of the previous release does not read the column.

Revision ID: 0015
Revises: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.relation add column held_back text")


def downgrade() -> None:
    op.execute("alter table tidefill.relation drop column held_back")
