"""How many bytes the plan of a job has, so that no tenant fills the barrier that begins a generation (expand).

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.job add column plan_bytes bigint not null default 0")


def downgrade() -> None:
    op.execute("alter table tidefill.job drop column plan_bytes")
