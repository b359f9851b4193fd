"""For what a job waits before it starts: an index by which its stages look up rows (expand).

A service of the previous release does not show it, and creates no jobs with stages.

Revision ID: 0022
Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.job add column preparing text")


def downgrade() -> None:
    op.execute("alter table tidefill.job drop column preparing")
