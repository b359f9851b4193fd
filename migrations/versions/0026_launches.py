"""Launches of workers in a cluster: the leader's intent, what holds it up, and its end (expand).

Revision ID: 0026
Revises: 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

LAUNCHES = """
create table tidefill.launch (
    worker text primary key,
    graph bigint not null,
    attempt integer not null,
    asked_at timestamptz not null,
    posted_at timestamptz,
    held_cause text,
    held_text text,
    held_since timestamptz,
    ended_at timestamptz,
    reason text,
    failures integer,
    due timestamptz,
    constraint launch_hold_is_whole check (num_nulls(held_cause, held_text, held_since) in (0, 3)),
    constraint launch_end_is_whole check (num_nulls(ended_at, reason, failures, due) in (0, 4))
);
create unique index launch_of_a_graph_is_one_at_a_time on tidefill.launch (graph) where ended_at is null;
"""


def upgrade() -> None:
    op.execute(LAUNCHES)


def downgrade() -> None:
    op.execute("drop table tidefill.launch")
