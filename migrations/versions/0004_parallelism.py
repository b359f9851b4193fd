"""The parallelism that a user set for a job, in general and during its creation (expand).

A job without a parallelism keeps its actors, because the previous release stores only those.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

PARALLELISM = """
alter table tidefill.job
    add column parallelism text,
    add column backfill_parallelism text,
    add column rescale_due boolean not null default false;
create index job_rescale_due on tidefill.job (id) where rescale_due and state in ('Creating', 'Created');
"""

JOBS = """
create or replace view rw_catalog.rw_streaming_jobs as
select
    j.id,
    j.id as job_id,
    j.relation as table_id,
    r.name,
    1 as database_id,
    upper(j.state) as status,
    {parallelism} as parallelism,
    r.vnode_count as max_parallelism,
    'default' as resource_group,
    j.error,
    j.recoveries
from tidefill.job j join tidefill.relation r on r.id = j.relation
where not r.dropped;
"""

ACTORS = """(
        select 'fixed(' || max(of_fragment.actors) || ')'
        from (
            select count(*) as actors
            from tidefill.fragment f join tidefill.actor a on a.fragment = f.id
            where f.job = j.id
            group by f.id
        ) of_fragment
    )"""
ASKED = f"""coalesce(
        case when j.state in ('Initial', 'Queued', 'Creating') then j.backfill_parallelism end,
        j.parallelism,
        {ACTORS}
    )"""


def upgrade() -> None:
    op.execute(PARALLELISM)
    op.execute(JOBS.format(parallelism=ASKED))


def downgrade() -> None:
    op.execute(JOBS.format(parallelism=ACTORS))
    op.execute(
        "alter table tidefill.job drop column parallelism, drop column backfill_parallelism, drop column rescale_due"
    )
