"""The totals of snapshot scans, the lookups of stages, and the actors of pauses and limits (expand).

`scan_progress.total` is the number of keys at the epoch that a snapshot job has pinned. Other scans have none, and
their total is the present number. `rw_fragment_backfill_progress` has a row for each input that is looked up.

Revision ID: 0034
Revises: 0033
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

EARLIER = """
create view rw_catalog.rw_fragment_backfill_progress as
select
    j.id as job_id,
    f.id as fragment_id,
    'public.' || r.name as job_name,
    coalesce('public.' || u.name, (f.cdc ->> 'external_schema') || '.' || (f.cdc ->> 'external_table'))
        as upstream_table_name,
    case when total.rows = 0 then '100' else round(share.percent, greatest(min_scale(share.percent), 2))::text end
        || '% (' || p.rows || '/' || total.rows || ')' as progress
from tidefill.scan_progress p
join tidefill.fragment f on f.id = p.fragment
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
left join tidefill.relation u on u.id = f.upstream
cross join lateral (select coalesce(u.key_count, (f.cdc ->> 'total')::bigint, 0) as rows) total
cross join lateral (select round(p.rows::numeric(60, 30) * 100 / nullif(total.rows, 0), 20) as percent) share
where j.state in ('Initial', 'Queued', 'Creating') or (not p.finished and f.kind = 'CDC_SCAN' and j.state = 'Created')
"""
PRESENT = """
create or replace view rw_catalog.rw_fragment_backfill_progress as
with listed as (
    select j.id as job_id, f.id as fragment_id, 'public.' || r.name as job_name, f.upstream, f.cdc, f.query, p.rows,
        p.total
    from tidefill.scan_progress p
    join tidefill.fragment f on f.id = p.fragment
    join tidefill.job j on j.id = f.job
    join tidefill.relation r on r.id = j.relation
    where j.state in ('Initial', 'Queued', 'Creating')
        or (not p.finished and f.kind = 'CDC_SCAN' and j.state = 'Created')
)
select
    l.job_id,
    l.fragment_id,
    l.job_name,
    coalesce('public.' || u.name, (l.cdc ->> 'external_schema') || '.' || (l.cdc ->> 'external_table'))
        as upstream_table_name,
    case when total.rows = 0 then '100' else round(share.percent, greatest(min_scale(share.percent), 2))::text end
        || '% (' || l.rows || '/' || total.rows || ')' as progress,
    'scan' as kind
from listed l
left join tidefill.relation u on u.id = l.upstream
cross join lateral (
    select greatest(coalesce(l.total, u.key_count, (l.cdc ->> 'total')::bigint, 0), l.rows) as rows
) total
cross join lateral (select round(l.rows::numeric(60, 30) * 100 / nullif(total.rows, 0), 20) as percent) share
union all
select l.job_id, l.fragment_id, l.job_name, 'public.' || u.name, '100% (0/0)', 'lookup'
from listed l
cross join lateral jsonb_path_query(l.query, '$.joins[*].inputs[*].relation') with ordinality as input (id, place)
join tidefill.relation u on u.id = input.id::bigint
where input.place > 1 and u.kind <> 'internal table'
"""


def upgrade() -> None:
    op.execute("alter table tidefill.scan_progress add column total bigint")
    op.execute("alter table tidefill.fragment add column limit_by text")
    op.execute("alter table tidefill.graph add column paused_by text")
    op.execute(PRESENT)


def downgrade() -> None:
    # A column cannot be removed by a replacement. The service grants the read on its next start.
    op.execute("drop view rw_catalog.rw_fragment_backfill_progress")
    op.execute(EARLIER)
    op.execute("alter table tidefill.scan_progress drop column total")
    op.execute("alter table tidefill.fragment drop column limit_by")
    op.execute("alter table tidefill.graph drop column paused_by")
