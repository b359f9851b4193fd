"""Whether nobody waits for the answer to a request any more, so that its worker stops (expand).

Revision ID: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("alter table tidefill.request add column withdrawn boolean not null default false")


def downgrade() -> None:
    op.execute("alter table tidefill.request drop column withdrawn")
