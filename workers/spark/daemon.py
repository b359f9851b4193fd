"""The daemon that forks Spark's Python workers. It has everything loaded that a task imports, so a fork takes
milliseconds.

Spark finds it by the setting `spark.python.daemon.module`.
"""

import gc
import resource
from importlib import import_module
from typing import Final

from pyspark import daemon

from workers.memory import allocated, half_of_memory

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
"""New objects until a collection of the youngest generation. Python's default of 700 is reached every 350 rows, which
doubled the time for copying pages of an external table. A collection at the end of each task happens in any case.
"""

TASK_BYTES: Final = max(1 << 30, half_of_memory() // 6)
"""The most memory that a task's process may take (I13). Two tasks over rows of 500 kB had 2.6 GB each, and grew."""

if __name__ == "__main__":
    for module in _LOADED:
        import_module(module)
    # A Python worker collects garbage after each task. Without the freeze it would traverse these modules each time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    # Arrow has reserved a gigabyte already, which it does not use.
    most, hard = allocated() + TASK_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    daemon.manager()
