"""The size, table and failed tries of a waiting statement; the parameters that bound statements' times (expand).

A service of the previous release stores statements without a size, so they count as empty.

Revision ID: 0013
Revises: 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
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
        ('backfill_auto_source_active_queries', '50')"""
ADDED = """,
        ('dml_epoch_budget_ms', '2000'),
        ('dml_statement_timeout_ms', '10000')"""
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values{}
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""


def upgrade() -> None:
    op.execute("alter table tidefill.statement add column relation bigint")
    op.execute("alter table tidefill.statement add column bytes bigint not null default 0")
    op.execute("alter table tidefill.statement add column tries smallint not null default 0")
    op.execute(
        "update tidefill.statement set relation = (body -> 'relation' ->> 'id')::bigint,"
        " bytes = octet_length(body::text) where finished_at is null"
    )
    op.execute(PARAMETERS.format(EARLIER + ADDED))


def downgrade() -> None:
    op.execute(PARAMETERS.format(EARLIER))
    op.execute("alter table tidefill.statement drop column tries")
    op.execute("alter table tidefill.statement drop column bytes")
    op.execute("alter table tidefill.statement drop column relation")
