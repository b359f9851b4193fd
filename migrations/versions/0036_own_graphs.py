"""Jobs that stay in a graph of their own, why, and how far they have come; the new parameter, in the catalog (expand).

A service of the previous release would merge such a job, which delays others and breaks nothing.

Revision ID: 0036
Revises: 0035
"""

from alembic import op

revision = "0036"
down_revision = "0035"
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
        ('dml_statement_timeout_ms', '10000'),
        ('row_limit_max', '100000'),
        ('statement_timeout_max_ms', '600000'),
        ('serverless_workers_max', '0'),
        ('operator_creating_jobs_max', '0'),
        ('operator_calls_max', '0'),
        ('operator_result_bytes_max', '0'),
        ('viewer_calls_max', '0'),
        ('viewer_result_bytes_max', '0')"""
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values{}
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""
OWN_GRAPHS = """
create view rw_catalog.rw_own_graphs as
select
    j.id,
    r.name,
    j.graph,
    j.own_graph as reason,
    s.consumed as consumed_epoch,
    g.published as published_epoch,
    greatest(0, ((d.committed >> 16) - (coalesce(s.consumed, j.snapshot_epoch) >> 16)) / 1000.0)::numeric(20, 3)
        as lag_seconds
from tidefill.job j
join tidefill.relation r on r.id = j.relation
join tidefill.snapshot_backfill s on s.job = j.id
join tidefill.graph g on g.id = j.graph
join tidefill.graph d on d.id = 1
where j.own_graph is not null and not r.dropped
"""


def upgrade() -> None:
    op.execute("alter table tidefill.job add column own_graph text")
    op.execute(PARAMETERS.format(_with(EARLIER)))
    op.execute(OWN_GRAPHS)


def downgrade() -> None:
    op.execute("drop view rw_catalog.rw_own_graphs")
    op.execute(PARAMETERS.format(EARLIER))
    op.execute("alter table tidefill.job drop column own_graph")


def _with(earlier: str) -> str:
    before, after = earlier.split("        ('serverless_workers_max'")
    ours = {"own_graph_rows": 10_000, "stage_timeout_ms": 30_000, "creating_rows_max": 1_000_000_000}
    added = [*(f"('{name}', '{value}')" for name, value in ours.items()), f"('serverless_workers_max'{after}"]
    return before + ",\n".join(f"        {one}" for one in added)
