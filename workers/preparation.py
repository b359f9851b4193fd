"""`python -m workers.preparation`: once after installing, lay out the classes that a worker loads. Each start of one
takes half as long from then on.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from workers.rpc.warm_up import warm
from workers.spark.gateway import JAVA_OPTIONS, lay_out, listing
from workers.spark.session import CONF, start


def prepare() -> Path:
    """Run a session that lists its classes, and lay these out; return where. Raises what `lay_out` raises."""
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
