"""Leave processor time to the service while sessions of readers compute, on Linux.

Each process of Postgres is a session of the system, and the kernel gives each session as much as the whole service
(`sched_autogroup_enabled`). With four SELECTs that computed on two cores, INSERTs took 12 s.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

NICE: Final = 5
"""About a third of the usual weight. With less, a session that holds a lock of the server keeps it for too long."""
_TITLE: Final = re.compile(rb"postgres: tidefill_read(er)?_\w+ ")
"""What Postgres calls a process of such a session. `service.serving.roles` and `read_logins` make the names."""


def calm(directory: Path) -> None:
    """Lower the priority of readers' sessions in the server of a cluster. Only Linux has what it needs."""
    for process in Path("/proc").glob("[0-9]*"):
        # Any of them may end meanwhile, and the kernel takes few such orders a second from others than root.
        with suppress(OSError):
            if _TITLE.match((process / "cmdline").read_bytes()) and (process / "cwd").resolve() == directory:
                _calm(process)


def _calm(process: Path) -> None:
    pid = int(process.name)
    if os.getpriority(os.PRIO_PROCESS, pid) < NICE:
        (process / "autogroup").write_text(str(NICE))
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
