"""The progress of a fragment has at least two decimals, `3.00% (30/1000)`, because readers parse them (expand).

Revision ID: 0016
Revises: 0015
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

FRAGMENT_PROGRESS = """
create or replace view rw_catalog.rw_fragment_backfill_progress as
select
    j.id as job_id,
    f.id as fragment_id,
    'public.' || r.name as job_name,
    coalesce('public.' || u.name, (f.cdc ->> 'external_schema') || '.' || (f.cdc ->> 'external_table'))
        as upstream_table_name,
    case when total.rows = 0 then '100' else {share}::text end || '% (' || p.rows || '/' || total.rows || ')'
        as progress
from tidefill.scan_progress p
join tidefill.fragment f on f.id = p.fragment
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
left join tidefill.relation u on u.id = f.upstream
cross join lateral (select coalesce(u.key_count, (f.cdc ->> 'total')::bigint, 0) as rows) total
cross join lateral (select round(p.rows::numeric(60, 30) * 100 / nullif(total.rows, 0), 20) as percent) share
where j.state in ('Initial', 'Queued', 'Creating') or (not p.finished and f.kind = 'CDC_SCAN' and j.state = 'Created');
"""
EARLIER = "trim_scale(share.percent)"
PADDED = "round(share.percent, greatest(min_scale(share.percent), 2))"


def upgrade() -> None:
    op.execute(FRAGMENT_PROGRESS.format(share=PADDED))


def downgrade() -> None:
    op.execute(FRAGMENT_PROGRESS.format(share=EARLIER))
