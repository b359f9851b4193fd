"""The daemon that forks Spark's Python workers. It has everything loaded that a task imports, so a fork takes
milliseconds.

Spark finds it by the setting `spark.python.daemon.module`.
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
"""New objects until a collection of the youngest generation. Python's default of 700 is reached every 350 rows, which
doubled the time for copying pages of an external table. A collection at the end of each task happens in any case.
"""

if __name__ == "__main__":
    for module in _LOADED:
        import_module(module)
    # A Python worker collects garbage after each task. Without the freeze it would traverse these modules each time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    daemon.manager()
