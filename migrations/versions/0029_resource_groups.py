"""Resource groups: the profile of a serverless job's worker (expand).

A leader of the previous release gives such a worker the profile of all serverless jobs.

Revision ID: 0029
Revises: 0028
"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

JOBS = """
create or replace view rw_catalog.rw_streaming_jobs as
select
    j.id,
    j.id as job_id,
    j.relation as table_id,
    r.name,
    1 as database_id,
    upper(j.state) as status,
    coalesce(
        case when j.state in ('Initial', 'Queued', 'Creating') then j.backfill_parallelism end,
        j.parallelism,
        (
            select 'fixed(' || max(of_fragment.actors) || ')'
            from (
                select count(*) as actors
                from tidefill.fragment f join tidefill.actor a on a.fragment = f.id
                where f.job = j.id
                group by f.id
            ) of_fragment
        )
    ) as parallelism,
    r.vnode_count as max_parallelism,
    {group} as resource_group,
    j.error,
    j.recoveries
from tidefill.job j join tidefill.relation r on r.id = j.relation
where not r.dropped;
"""


def upgrade() -> None:
    op.execute("alter table tidefill.job add column resource_group text")
    op.execute(JOBS.format(group="coalesce(j.resource_group, 'default')"))


def downgrade() -> None:
    op.execute(JOBS.format(group="'default'"))
    op.execute("alter table tidefill.job drop column resource_group")
