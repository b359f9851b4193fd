"""The system parameters that bound the settings of sessions, in the catalog (expand).

Revision ID: 0014
Revises: 0013
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# The defaults of `service.domain.parameters`, in its order.
EARLIER = """
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
        ('backfill_auto_source_active_queries', '50'),
        ('dml_epoch_budget_ms', '2000'),
        ('dml_statement_timeout_ms', '10000')"""
ADDED = """,
        ('row_limit_max', '100000'),
        ('statement_timeout_max_ms', '600000')"""
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values{}
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""


def upgrade() -> None:
    op.execute(PARAMETERS.format(EARLIER + ADDED))


def downgrade() -> None:
    op.execute(PARAMETERS.format(EARLIER))
