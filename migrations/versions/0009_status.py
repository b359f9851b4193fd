"""The times of a job's state, a graph's pause and a limit; catalogs of actors, events and recovery (expand).

The previous release does not store these times. For its changes the time is unknown, or that of the state before.

Revision ID: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SINCE = """
alter table tidefill.job add column state_since timestamptz;
alter table tidefill.graph add column paused_since timestamptz;
-- The epoch at which the present rate limit took effect; null where the scan began with it.
alter table tidefill.fragment add column limit_epoch bigint;
"""

# Trimming deletes the oldest; nothing changes an event.
APPEND_ONLY = """
create function tidefill.event_is_append_only() returns trigger language plpgsql as $$
begin
    raise exception 'events are only appended' using errcode = 'restrict_violation';
end
$$;
create trigger event_is_append_only before update on tidefill.event
    for each statement execute function tidefill.event_is_append_only();
"""

CATALOGS = """
create view rw_catalog.rw_actors as
select
    a.id as actor_id,
    g.worker as worker_id,
    a.fragment as fragment_id,
    f.job as job_id,
    case when g.status = 'RUNNING' then 'RUNNING' else 'INACTIVE' end as state,
    a.runs as vnodes,
    a.rows as consumed_rows,
    a.finished
from tidefill.actor a
join tidefill.fragment f on f.id = a.fragment
join tidefill.job j on j.id = f.job
join tidefill.graph g on g.id = j.graph
where j.state in ('Creating', 'Created', 'Cancelling', 'Dropping');

create view rw_catalog.rw_event_logs as
select e.id::text as unique_id, e.at as timestamp, upper(replace(e.kind, '.', '_')) as event_type, e.facts as info
from tidefill.event e;

create function rw_catalog.rw_recovery_status() returns text language sql stable as $$
    select case when bool_and(recovery_state = 'RUNNING') then 'RUNNING' else 'RECOVERING' end
    from rw_catalog.rw_recovery_info
$$;
"""


def upgrade() -> None:
    op.execute(SINCE)
    op.execute(APPEND_ONLY)
    op.execute(CATALOGS)


def downgrade() -> None:
    op.execute("drop function rw_catalog.rw_recovery_status()")
    op.execute("drop view rw_catalog.rw_event_logs, rw_catalog.rw_actors")
    op.execute("drop trigger event_is_append_only on tidefill.event")
    op.execute("drop function tidefill.event_is_append_only()")
    op.execute("alter table tidefill.fragment drop column limit_epoch")
    op.execute("alter table tidefill.graph drop column paused_since")
    op.execute("alter table tidefill.job drop column state_since")
