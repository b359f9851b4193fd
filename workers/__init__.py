"""tidefill's data plane: one Spark application that runs the vnode-partitioned executors on barriers.

The map: `agent` is the loop (beat, run the epoch, answer; knows no Spark); `backfill` decides (pure); `executors` run
a strategy; `queries` say how a view is maintained; `spark` is the only PySpark plumbing; `state_store` reads and
writes versioned tables.
"""
