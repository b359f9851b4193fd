"""The daemon that forks Spark's Python workers, with everything a task imports already loaded: a fork then costs
milliseconds.

Named by the Spark setting `spark.python.daemon.module`.
"""

import gc
from importlib import import_module
from typing import Final

from pyspark import daemon

_LOADED = (
    "adbc_driver_postgresql.dbapi",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "workers.engines.spark",
    "workers.rpc.verify",
)

_COLLECTED_AFTER: Final = 50_000
"""New objects until the youngest are looked through. Python's own 700 are those of 350 rows: copying pages of an
external table took twice the time. A task's garbage is collected when it ends, whatever happens before.
"""

if __name__ == "__main__":
    for module in _LOADED:
        import_module(module)
    # A Python worker collects its garbage after each task: what was loaded here would be walked through every time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    daemon.manager()
