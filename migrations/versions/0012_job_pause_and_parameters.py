"""The limits to which a paused job's scans return; all system parameters in the catalog, also unset ones (expand).

A service of the previous release resumes such a job without a limit, as it always did.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# The defaults of `service.domain.parameters`, in its order.
EVERY_PARAMETER = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values
        ('barrier_interval_ms', '1000'),
        ('checkpoint_frequency', '1'),
        ('max_concurrent_creating_streaming_jobs', '1'),
        ('pause_on_next_bootstrap', 'false'),
        ('backfill_auto_floor', '100'),
        ('backfill_auto_ceiling', '1000000'),
        ('backfill_auto_latency_target_ms', '0'),
        ('backfill_auto_replication_lag_mb', '64'),
        ('backfill_auto_connections_percent', '90'),
        ('backfill_auto_probe_http', ''),
        ('backfill_auto_probe_http_status', '200'),
        ('backfill_auto_probe_http_timeout_ms', '1000'),
        ('backfill_auto_probe_sql', ''),
        ('backfill_auto_probe_sql_max', '0'),
        ('backfill_auto_probe_sql_timeout_ms', '1000'),
        ('backfill_auto_source_replication_lag_mb', '64'),
        ('backfill_auto_source_active_queries', '50')
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""
THOSE_SET = """
create or replace view rw_catalog.rw_system_parameters as
select p.name, p.value
from tidefill.system_parameter p
"""


def upgrade() -> None:
    # -1: there was no limit. Null: the scan is not paused by its job.
    op.execute("alter table tidefill.fragment add column held_limit bigint")
    op.execute(EVERY_PARAMETER)


def downgrade() -> None:
    op.execute(THOSE_SET)
    op.execute("alter table tidefill.fragment drop column held_limit")
