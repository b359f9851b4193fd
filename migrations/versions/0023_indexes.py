"""Named indexes, the indexes of the state store, and `rw_indexes` (expand).

A service of the previous release does not show named indexes, and drops those that no stage needs. It must not run
while there is one.

Revision ID: 0023
Revises: 0022
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

KINDS = """
alter table tidefill.relation
    drop constraint relation_kind_is_known,
    add constraint relation_kind_is_known check (kind in ({kinds}))
"""
STATS = """
create or replace view rw_catalog.rw_table_stats as
select r.id, r.key_count as total_key_count
from tidefill.relation r
where not r.dropped and r.kind not in ({stateless})
"""
STORED = """
create table tidefill.stored_index (
    relation bigint not null references tidefill.relation (id),
    -- The columns, and how the state store keeps them: it is another database.
    shape jsonb not null,
    state text not null,
    bytes bigint,
    error text,
    -- The named indexes that it stands for, and the views whose stages need it.
    named bigint[] not null default '{}'::bigint[],
    views bigint[] not null default '{}'::bigint[],
    asked_at timestamptz not null,
    built_at timestamptz,
    primary key (relation, shape),
    constraint stored_index_state_is_known check (state in ('CREATING', 'CREATED', 'DROPPING'))
)
"""
# `id` is null for an index that no user named: the stages of views need it.
INDEXES = """
create view rw_catalog.rw_indexes as
with named as (
    select r.id, r.name, v.relation as on_id, r.definition, s.shape, s.state, s.bytes, s.error, s.views,
        s.asked_at, s.built_at,
        array(select c.name from tidefill.relation_column c where c.relation = r.id and c.key_position is not null
            order by c.key_position) as columns
    from tidefill.relation r
    join tidefill.view_reference v on v.reader = r.id
    left join tidefill.stored_index s on s.relation = v.relation and r.id = any (s.named)
    where r.kind = 'index' and not r.dropped
), unnamed as (
    select null::bigint as id, '__index_' || r.name || '_' || array_to_string(c.columns, '_') as name,
        s.relation as on_id,
        'CREATE INDEX ON ' || quote_ident(r.name) || ' ('
            || (select string_agg(quote_ident(one), ', ' order by at) from unnest(c.columns) with ordinality u(one, at))
            || ')' as definition,
        s.shape, s.state, s.bytes, s.error, s.views, s.asked_at, s.built_at, c.columns
    from tidefill.stored_index s
    join tidefill.relation r on r.id = s.relation
    cross join lateral (select array(select jsonb_array_elements_text(s.shape -> 'columns')) as columns) c
    where s.named = '{}'
)
select
    i.id,
    i.name,
    i.on_id as primary_table_id,
    array(
        select (c.position + 1)::smallint
        from unnest(i.columns) with ordinality k(name, at)
        join tidefill.relation_column c on c.relation = i.on_id and c.name = k.name
        order by k.at
    ) as indkey,
    1 as schema_id,
    1 as owner,
    i.definition,
    array[]::text[] as acl,
    i.asked_at as initialized_at,
    i.built_at as created_at,
    case i.state when 'CREATED' then 'Created' when 'DROPPING' then 'Dropping' else 'Creating' end as status,
    i.bytes as size,
    array(
        select r.name from tidefill.relation r where r.id = any (i.views) and not r.dropped order by r.id
    ) as needed_by,
    i.error
from (select * from named union all select * from unnamed) i
order by i.id nulls last, i.on_id, i.name
"""
GONE = """
create temp table gone on commit drop as select id from tidefill.relation where kind = 'index';
delete from tidefill.view_reference where reader in (select id from gone);
delete from tidefill.relation where id in (select id from gone)
"""
BEFORE = "'table', 'materialized view', 'view', 'source', 'sink', 'internal table'"


def upgrade() -> None:
    op.execute(KINDS.format(kinds=f"{BEFORE}, 'index'"))
    op.execute(STATS.format(stateless="'view', 'source', 'sink', 'index'"))
    op.execute(STORED)
    op.execute(INDEXES)


def downgrade() -> None:
    op.execute("drop view rw_catalog.rw_indexes")
    op.execute("drop table tidefill.stored_index")
    op.execute(STATS.format(stateless="'view', 'source', 'sink'"))
    op.execute(GONE)
    op.execute(KINDS.format(kinds=BEFORE))
