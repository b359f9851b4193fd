"""How many workers claimed a request, and after what time another worker may claim it too (expand).

A service of the previous release hands out only new requests and those of given-up workers, and counts no tries.

Revision ID: 0020
Revises: 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        alter table tidefill.request
            add column tries smallint not null default 0,
            add column hold interval
    """)


def downgrade() -> None:
    op.execute("alter table tidefill.request drop column tries, drop column hold")
