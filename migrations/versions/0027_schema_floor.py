"""The oldest services that work on this schema: those whose newest migration is not before `floor` (expand).

Migrations only expand within a release, so a service goes on with a newer schema. A later contraction raises `floor`.

Revision ID: 0027
Revises: 0026
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

FLOOR = """
create table tidefill.schema_floor (
    singleton boolean primary key default true check (singleton),
    floor text not null
);
insert into tidefill.schema_floor (floor) values ('0027');
"""


def upgrade() -> None:
    op.execute(FLOOR)


def downgrade() -> None:
    op.execute("drop table tidefill.schema_floor")
