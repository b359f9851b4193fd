"""`python -m workers.preparation`: run once after installing, to build the CDS archive (class data sharing) of the JVM.
It halves the start time of every worker.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from workers.rpc.warm_up import warm
from workers.spark.gateway import JAVA_OPTIONS, lay_out, listing
from workers.spark.session import CONF, start


def prepare() -> Path:
    """Run a session that lists the classes it loads, and archive them. Return the archive's path. Raises what `lay_out`
    raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "classes"
        session = start("local[2]", {JAVA_OPTIONS: listing(listed)})
        try:
            warm(session.spark, session.parallelism)
        finally:
            session.stop()
        return lay_out(CONF, listed)


if __name__ == "__main__":
    try:
        prepare()
    except subprocess.CalledProcessError as error:
        sys.exit(f"this Java cannot lay out classes: {(error.stderr or error.stdout).strip()[-500:]}")
    except OSError as error:
        sys.exit(str(error))
