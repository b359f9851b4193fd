"""The last view of each caller that held up others for too long, so that its next one waits (expand).

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("create table tidefill.slow_view (caller text primary key, name text not null, at timestamptz not null)")


def downgrade() -> None:
    op.execute("drop table tidefill.slow_view")
