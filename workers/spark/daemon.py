"""The daemon that forks Spark's Python workers, with everything a task imports already loaded: a fork then costs
milliseconds.

Named by the Spark setting `spark.python.daemon.module`.
"""

import gc
from importlib import import_module

from pyspark import daemon

_LOADED = (
    "adbc_driver_postgresql.dbapi",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "workers.executors.arrangement",
    "workers.executors.verification",
)

if __name__ == "__main__":
    for module in _LOADED:
        import_module(module)
    # A Python worker collects its garbage after each task: what was loaded here would be walked through every time.
    gc.collect()
    gc.freeze()
    daemon.manager()
