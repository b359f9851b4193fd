"""The catalogs of parallelism, internal tables and databases that RisingWave's scripts read (expand).

`id` and `job_id` are the relation's id, which is the job's id in RisingWave. So the joins of its scripts work.

Revision ID: 0018
Revises: 0017
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

VIEWS = {
    "rw_databases": """
create view rw_catalog.rw_databases as
select 1 as id, current_database()::text as name, 1 as owner, array[]::text[] as acl, 'default' as resource_group;
""",
    "rw_streaming_parallelism": """
create view rw_catalog.rw_streaming_parallelism as
select r.id, r.name, r.kind as relation_type, upper(j.parallelism) as parallelism, j.max_parallelism
from rw_catalog.rw_streaming_jobs j join tidefill.relation r on r.id = j.table_id
where r.kind in ('table', 'materialized view')
order by r.id;
""",
    "rw_fragment_parallelism": """
create view rw_catalog.rw_fragment_parallelism as
select
    r.id,
    r.name,
    r.kind as relation_type,
    f.fragment_id,
    f.distribution_type,
    f.state_table_ids,
    f.upstream_fragment_ids,
    f.flags,
    f.parallelism,
    f.max_parallelism
from rw_catalog.rw_fragments f join tidefill.relation r on r.id = f.table_id
where r.kind in ('table', 'materialized view') and not r.dropped
order by r.id, f.fragment_id;
""",
    # A scan stores its positions under its own id. `state_table_ids` of rw_fragments has that id too.
    "rw_internal_table_info": """
create view rw_catalog.rw_internal_table_info as
select
    f.id,
    '__internal_' || r.name || '_' || f.id || '_' || lower(replace(f.kind, '_', '')) || '_' || f.id as name,
    r.id as job_id,
    r.name as job_name,
    r.kind as job_type,
    'public' as schema_name,
    'root' as owner
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
where f.kind in ('STREAM_SCAN', 'SNAPSHOT_SCAN', 'CDC_SCAN') and not r.dropped
order by f.id;
""",
}


def upgrade() -> None:
    for view in VIEWS.values():
        op.execute(view)


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(f"drop view rw_catalog.{name}")
