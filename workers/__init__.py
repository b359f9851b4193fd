"""tidefill's data plane: one Spark application that runs the vnode-partitioned fragments of a graph on barriers.

The modules, from the top:

* `agent` takes barriers and answers them. It knows no Spark.
* `graph` runs one epoch of a graph.
* `runners` run its fragments, one module for each kind, by the protocol of `runners.port`.
* `engines` compute a stage's part of an epoch, in Spark or in the state store.
* `cdc` reads external databases.
* `queries` print stages in Spark SQL.
* `state_store` reads and writes versioned tables.
* `backfill` decides what a scan reads. It is pure.
* `rpc` answers requests of the service outside the epochs.

To follow one barrier, read `agent`, `graph`, `runners.running`, `runners.stage_scan`, `engines.spark`. To follow one
page of history from there, read `engines.history`, `backfill.positions`, `state_store.postgres`.
"""
