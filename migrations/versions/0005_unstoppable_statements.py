"""The last statement of each caller that Postgres could not stop, so that its next ones are refused (expand).

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "create table tidefill.unstoppable_statement ("
        " caller text primary key, statement bigint not null, at timestamptz not null, number integer not null)"
    )


def downgrade() -> None:
    op.execute("drop table tidefill.unstoppable_statement")
