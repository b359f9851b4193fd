"""Snapshot jobs, with the partial graph in which they read one epoch of their upstreams and replay the log (expand).

A leader of the previous release makes barriers of the database graph only. Under it a snapshot job makes no progress.

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SNAPSHOTS = """
create sequence tidefill.graph_id start 2;
-- The epoch of the upstreams that the job's history is; kept once the job is created.
alter table tidefill.job add column snapshot_epoch bigint;
create table tidefill.snapshot_backfill (
    job bigint primary key references tidefill.job (id) on delete cascade,
    graph bigint not null unique references tidefill.graph (id),
    -- The upstreams' epoch up to which their log was replayed; null while the snapshot is read.
    consumed bigint,
    -- Whether the table has the index of its storage order: it is built when the snapshot has been loaded.
    indexed boolean not null,
    -- Whether the job goes on in the database graph.
    merged boolean not null default false
);
-- A command that concerns several graphs is one command of each: these are parts of the first.
alter table tidefill.command add column part_of bigint;
create index command_part on tidefill.command (part_of) where part_of is not null;
"""

DDL_PROGRESS = """
create or replace view rw_catalog.rw_ddl_progress as
select
    j.id as ddl_id,
    j.statement as ddl_statement,
    case when j.background then 'BACKGROUND' else 'FOREGROUND' end as create_type,
    coalesce(j.progress_text, '0.0%') as progress,
    j.initialized_at,
    false as is_serverless_backfill,
    {backfill_type} as backfill_type
from tidefill.job j
where j.state in ('Initial', 'Queued', 'Creating');
"""
NORMAL = "'NORMAL_BACKFILL'"
BY_SCAN = """case
        when not exists (select from tidefill.fragment f where f.job = j.id and f.scan_type is not null)
            then 'BACKFILL_TYPE_UNSPECIFIED'
        when exists (select from tidefill.fragment f where f.job = j.id and f.scan_type = 'SNAPSHOT_BACKFILL')
            then 'SNAPSHOT_BACKFILL'
        else 'NORMAL_BACKFILL'
    end"""

BACKFILL_INFO = """
create or replace view rw_catalog.rw_backfill_info as
select
    f.job as job_id,
    f.id as fragment_id,
    f.id as backfill_state_table_id,
    f.upstream as backfill_target_relation_id,
    {backfill_type} as backfill_type,
    {backfill_epoch} as backfill_epoch
from tidefill.fragment f join tidefill.job j on j.id = f.job
where f.kind = 'STREAM_SCAN';
"""
SCAN_TYPE = "case f.scan_type when 'SNAPSHOT_BACKFILL' then f.scan_type else 'ARRANGEMENT_OR_NO_SHUFFLE' end"


def upgrade() -> None:
    op.execute(SNAPSHOTS)
    op.execute(DDL_PROGRESS.format(backfill_type=BY_SCAN))
    op.execute(BACKFILL_INFO.format(backfill_type=SCAN_TYPE, backfill_epoch="coalesce(j.snapshot_epoch, 0)"))


def downgrade() -> None:
    op.execute(BACKFILL_INFO.format(backfill_type="'ARRANGEMENT_OR_NO_SHUFFLE'", backfill_epoch="0::bigint"))
    op.execute(DDL_PROGRESS.format(backfill_type=NORMAL))
    op.execute("alter table tidefill.command drop column part_of")
    op.execute("drop table tidefill.snapshot_backfill")
    op.execute("alter table tidefill.job drop column snapshot_epoch")
    op.execute("drop sequence tidefill.graph_id")
