"""tidefill's data plane: one Spark application that runs the vnode-partitioned executors on barriers.

The map, from above: `agent` takes barriers and answers them (it knows no Spark); `graph` runs an epoch of a graph;
`runners` run its fragments, one module for each kind, by the protocol of `runners.port`; `engines` compute a table
scan's part, in Spark or in the store; `cdc` reads external databases; `queries` say how a view is maintained;
`state_store` reads and writes versioned tables; `backfill` decides (pure). `rpc` answers the service's questions beside
the epochs. To follow one barrier: `agent`, `graph`, `runners.table_scan`, `engines.spark`, `state_store.postgres`.
"""
