"""What the pause of a job holds back: the limits that its scans go on with (expand).

A service of the previous release resumes such a job without a limit, as it always did.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # -1 where there was no limit; null where the scan is not paused by its job.
    op.execute("alter table tidefill.fragment add column held_limit bigint")


def downgrade() -> None:
    op.execute("alter table tidefill.fragment drop column held_limit")
