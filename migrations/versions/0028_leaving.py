"""Workers that leave, and their successors: a graph may have a launch that begins before another one ends (expand).

Revision ID: 0028
Revises: 0027
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

LEAVING = """
alter table tidefill.worker add column leaving boolean not null default false;
create unique index launch_attempt_of_a_graph_is_one on tidefill.launch (graph, attempt);
drop index tidefill.launch_of_a_graph_is_one_at_a_time;
"""
# Of two launches that have not ended, the newer one replaces the other.
ONE_AT_A_TIME = """
delete from tidefill.launch as old using tidefill.launch as newer
where old.graph = newer.graph and old.attempt < newer.attempt and old.ended_at is null and newer.ended_at is null;
create unique index launch_of_a_graph_is_one_at_a_time on tidefill.launch (graph) where ended_at is null;
drop index tidefill.launch_attempt_of_a_graph_is_one;
alter table tidefill.worker drop column leaving;
"""


def upgrade() -> None:
    op.execute(LEAVING)


def downgrade() -> None:
    op.execute(ONE_AT_A_TIME)
