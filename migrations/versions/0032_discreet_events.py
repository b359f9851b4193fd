"""The catalog omits events of tokens and secrets, and literals of the SQL probe (expand).

The catalog's views have no caller, so they show what every role may see. Admins read these events by `/v1/events`. The
text of the SQL probe moves to the secrets, as the URL of the HTTP probe is kept.

Revision ID: 0032
Revises: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

EVENTS = """
create or replace view rw_catalog.rw_events as
select e.id, e.at, e.kind, e.facts
from tidefill.event e{where};

create or replace view rw_catalog.rw_event_logs as
select e.id::text as unique_id, e.at as timestamp, upper(replace(e.kind, '.', '_')) as event_type, e.facts as info
from tidefill.event e{where};
"""
SHOWN = "\nwhere not starts_with(e.kind, 'token.') and not starts_with(e.kind, 'secret.')"
HIDE = """
insert into tidefill.secret (name, value)
select 'parameter ' || name, value from tidefill.system_parameter where name = 'backfill_auto_probe_sql'
on conflict (name) do nothing;

update tidefill.system_parameter set value = regexp_replace(value, '''[^'']*''', '''***''', 'g')
where name = 'backfill_auto_probe_sql';
"""
SHOW = """
update tidefill.system_parameter p set value = s.value
from tidefill.secret s where p.name = 'backfill_auto_probe_sql' and s.name = 'parameter ' || p.name;

delete from tidefill.secret where name = 'parameter backfill_auto_probe_sql';
"""


def upgrade() -> None:
    op.execute(EVENTS.format(where=SHOWN))
    op.execute(HIDE)


def downgrade() -> None:
    op.execute(SHOW)
    op.execute(EVENTS.format(where=""))
