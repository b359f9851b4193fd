"""A fragment may be an operator: a stage without history of its own, beside scans of its inputs (expand).

A service of the previous release cannot read an operator. It must not run while there is one.

Revision ID: 0024
Revises: 0022
"""

from alembic import op

revision = "0024"
down_revision = "0022"
branch_labels = None
depends_on = None

KINDS = """
alter table tidefill.fragment
    drop constraint fragment_kind_is_known,
    add constraint fragment_kind_is_known check (kind in ({kinds})),
    drop constraint fragment_scan_has_an_upstream,
    add constraint fragment_scan_has_an_upstream check (
        (kind = 'STREAM_SCAN') = (upstream is not null)
        and (kind in ({queries})) = (query is not null)
        and (upstream is null) = (scan_type is null)
    )
"""
FRAGMENTS = """
create or replace view rw_catalog.rw_fragments as
select
    f.id as fragment_id,
    j.relation as table_id,
    'HASH' as distribution_type,
    array[case when f.kind in ('STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN') then f.id else j.relation end]
        as state_table_ids,
    case f.kind
        when 'STREAM_SCAN' then array(
            select writer.id
            from tidefill.fragment writer join tidefill.job maker on maker.id = writer.job
            where maker.relation = f.upstream and writer.kind <> 'STREAM_SCAN'
            order by writer.id
        )
        {further}
        when 'MATERIALIZE' then array(
            select scan.id
            from tidefill.fragment scan
            where scan.job = f.job and scan.kind = 'STREAM_SCAN'
            order by scan.id
        )
        else array[]::bigint[]
    end as upstream_fragment_ids,
    array[f.kind] as flags,
    actors.number as parallelism,
    case when f.kind = 'CDC_SCAN' then jsonb_array_length(f.cdc -> 'splits') else r.vnode_count end as max_parallelism,
    'fixed(' || actors.number || ')' as parallelism_policy
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
cross join lateral (select count(*) as number from tidefill.actor a where a.fragment = f.id) actors
"""
# The scans that say how much of its inputs an operator sees. They are stored right before it. The texts of queries are
# not shown, so neither are the operators that write what it reads.
OPERATORS = """
        when 'OPERATOR' then array(
            select scan.id
            from tidefill.fragment scan
            where scan.job = f.job and scan.kind = 'STREAM_SCAN' and scan.id < f.id and not exists (
                select
                from tidefill.fragment earlier
                where earlier.job = f.job and earlier.kind = 'OPERATOR' and earlier.id between scan.id and f.id - 1
            )
            order by scan.id
        )
"""
# A view without its fragments is followed no longer.
GONE = "delete from tidefill.fragment where kind = 'OPERATOR' or query ? 'operator'"


def upgrade() -> None:
    op.execute(
        KINDS.format(
            kinds="'DML', 'STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN', 'MATERIALIZE', 'OPERATOR'",
            queries="'STREAM_SCAN', 'OPERATOR'",
        )
    )
    op.execute(FRAGMENTS.format(further=OPERATORS.strip()))


def downgrade() -> None:
    op.execute(FRAGMENTS.format(further=""))
    op.execute(GONE)
    op.execute(
        KINDS.format(kinds="'DML', 'STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN', 'MATERIALIZE'", queries="'STREAM_SCAN'")
    )
