"""The binder of materialized views: scans, keys, backfill order, and what the state store may compute."""
