"""Logical views: relations of their own kind, without a job, and the references of their readers (expand).

The previous release reads relations by their jobs, so it sees no logical view. But their names are taken for it too.

Revision ID: 0008
Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KINDS = """
alter table tidefill.relation
    drop constraint relation_kind_is_known,
    add constraint relation_kind_is_known check (kind in ({kinds}));
"""

REFERENCES = """
-- What a logical view reads, and which logical views a materialized one reads.
create table tidefill.view_reference (
    reader bigint not null references tidefill.relation (id),
    relation bigint not null references tidefill.relation (id),
    primary key (reader, relation)
);
create index view_reference_relation on tidefill.view_reference (relation);
"""

CATALOG = """
create view rw_catalog.rw_views as
select r.id, r.name, 'public' as schema_name, r.definition
from tidefill.relation r
where r.kind = 'view' and not r.dropped;
"""

STATS = """
create or replace view rw_catalog.rw_table_stats as
select r.id, r.key_count as total_key_count
from tidefill.relation r
where not r.dropped{stored};
"""


def upgrade() -> None:
    op.execute(KINDS.format(kinds="'table', 'materialized view', 'view'"))
    op.execute(REFERENCES)
    op.execute(CATALOG)
    op.execute(STATS.format(stored=" and r.kind <> 'view'"))


def downgrade() -> None:
    op.execute(STATS.format(stored=""))
    op.execute("drop view rw_catalog.rw_views")
    op.execute("drop table tidefill.view_reference")
    op.execute("delete from tidefill.cleanup where relation in (select id from tidefill.relation where kind = 'view')")
    op.execute("delete from tidefill.relation where kind = 'view'")
    op.execute(KINDS.format(kinds="'table', 'materialized view'"))
