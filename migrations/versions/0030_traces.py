"""The request that asked for a job, as a W3C context, until the job's span is made (expand).

Revision ID: 0030
Revises: 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

TRACES = """
alter table tidefill.job add column traceparent text;
create index job_traced on tidefill.job (id) where traceparent is not null;
"""


def upgrade() -> None:
    op.execute(TRACES)


def downgrade() -> None:
    op.execute("alter table tidefill.job drop column traceparent")
