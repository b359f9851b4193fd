"""Sources that are places in a lake, and since when a table waits for what it reads (expand).

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "create table tidefill.lake_source ("
        " relation bigint primary key references tidefill.relation (id), connector jsonb not null)"
    )
    op.execute("alter table tidefill.fragment add column source_waiting_since timestamptz")
    op.execute(
        "create index fragment_source_waiting on tidefill.fragment (id)"
        " where source_waiting is not null and kind = 'SOURCE_SCAN'"
    )


def downgrade() -> None:
    op.execute("drop index tidefill.fragment_source_waiting")
    op.execute("alter table tidefill.fragment drop column source_waiting_since cascade")
    # A relation without its source would be shown by no earlier release, and keep its name.
    op.execute("update tidefill.relation set dropped = true where id in (select relation from tidefill.lake_source)")
    op.execute("drop table tidefill.lake_source cascade")
