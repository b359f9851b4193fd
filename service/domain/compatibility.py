"""List RisingWave's session variables that have no effect here. They are accepted with a notice so that its scripts
run, as is a variable that nobody knows.
"""

from typing import Final

WITHOUT_EFFECT: Final = frozenset(
    {
        "application_name",
        "batch_enable_distributed_dml",
        "batch_enable_lookup_join",
        "batch_enable_sort_agg",
        "batch_expr_strict_mode",
        "batch_parallelism",
        "bypass_cluster_limits",
        "bytea_output",
        "cdc_source_wait_streaming_start_timeout",
        "client_encoding",
        "client_min_messages",
        "create_compaction_group_for_mv",
        "datestyle",
        "dml_rate_limit",
        "enable_index_selection",
        "enable_join_ordering",
        "enable_locality_backfill",
        "enable_mv_selection",
        "enable_share_plan",
        "enable_two_phase_agg",
        "extra_float_digits",
        "force_split_distinct_agg",
        "force_two_phase_agg",
        "idle_in_transaction_session_timeout",
        "intervalstyle",
        "lock_timeout",
        "max_split_range_gap",
        "query_epoch",
        "query_mode",
        "row_security",
        "rw_batch_enable_lookup_join",
        "rw_batch_enable_sort_agg",
        "rw_enable_join_ordering",
        "rw_enable_share_plan",
        "rw_enable_two_phase_agg",
        "rw_force_split_distinct_agg",
        "rw_force_two_phase_agg",
        "rw_force_delta_join",
        "rw_implicit_flush",
        "rw_streaming_allow_jsonb_in_stream_key",
        "rw_streaming_enable_bushy_join",
        "rw_streaming_enable_delta_join",
        "rw_streaming_over_window_cache_policy",
        "search_path",
        "sink_decouple",
        "sink_rate_limit",
        "source_rate_limit",
        "standard_conforming_strings",
        "streaming_allow_jsonb_in_stream_key",
        "streaming_enable_bushy_join",
        "streaming_enable_delta_join",
        "streaming_enable_materialized_expressions",
        "streaming_enable_unaligned_join",
        "streaming_force_filter_inside_join",
        "streaming_join_encoding",
        "streaming_over_window_cache_policy",
        "streaming_separate_consecutive_join",
        "streaming_separate_sink",
        "streaming_sync_log_store_buffer_size",
        "streaming_sync_log_store_pause_duration_ms",
        "streaming_use_shared_source",
        "synchronize_seqscans",
        "upsert_dml",
        "visibility_mode",
    }
)
_REASONS: Final = {
    "rw_implicit_flush": "every INSERT, UPDATE and DELETE is answered after its epoch is published",
    "search_path": "there is one schema, public",
    "visibility_mode": "readers see published epochs only",
}


def notice(name: str) -> str:
    """Return the notice for a variable that has no effect."""
    if name not in WITHOUT_EFFECT:
        return f'unrecognized configuration parameter "{name}": it is accepted and has no effect'
    reason = _REASONS.get(name)
    return f'"{name}" is accepted and has no effect' + (f": {reason}" if reason else "")
