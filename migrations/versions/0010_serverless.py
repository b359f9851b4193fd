"""Serverless jobs: snapshot jobs with a worker of their own, and the failed starts of that worker (expand).

A leader of the previous release runs such a job on the worker of the database graph.

Revision ID: 0010
Revises: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SERVERLESS = """
alter table tidefill.job add column serverless boolean not null default false;
-- Starts of the job's own worker that came to nothing, in a row; what was wrong with the last; when the next is due.
alter table tidefill.snapshot_backfill
    add column start_failures integer not null default 0,
    add column start_error text,
    add column start_due timestamptz;
-- A worker of its own is remembered for longer than the graph that it served.
alter table tidefill.worker drop constraint worker_graph_fkey;
"""

SHARED = """
update tidefill.worker w set graph = 1 where not exists (select from tidefill.graph g where g.id = w.graph);
alter table tidefill.worker add constraint worker_graph_fkey foreign key (graph) references tidefill.graph (id);
alter table tidefill.snapshot_backfill drop column start_failures, drop column start_error, drop column start_due;
alter table tidefill.job drop column serverless;
"""

DDL_PROGRESS = """
create or replace view rw_catalog.rw_ddl_progress as
select
    j.id as ddl_id,
    j.statement as ddl_statement,
    case when j.background then 'BACKGROUND' else 'FOREGROUND' end as create_type,
    coalesce(j.progress_text, '0.0%') as progress,
    j.initialized_at,
    {serverless} as is_serverless_backfill,
    case
        when not exists (select from tidefill.fragment f where f.job = j.id and f.scan_type is not null)
            then 'BACKFILL_TYPE_UNSPECIFIED'
        when exists (select from tidefill.fragment f where f.job = j.id and f.scan_type = 'SNAPSHOT_BACKFILL')
            then 'SNAPSHOT_BACKFILL'
        else 'NORMAL_BACKFILL'
    end as backfill_type
from tidefill.job j
where j.state in ('Initial', 'Queued', 'Creating');
"""


def upgrade() -> None:
    op.execute(SERVERLESS)
    op.execute(DDL_PROGRESS.format(serverless="j.serverless"))


def downgrade() -> None:
    op.execute(DDL_PROGRESS.format(serverless="false"))
    op.execute(SHARED)
