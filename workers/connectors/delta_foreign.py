"""Notice that another program changed rows of a Delta table whose only writer is tidefill.

Each commit of ours names its sink, and stores up to which version the table was looked through. Commits that change no
row, such as OPTIMIZE, are anybody's.
"""

from typing import Final

from deltalake import DeltaTable, Transaction

from service.protocol.delta import DeltaOptions
from workers.connectors.delta_files import Files
from workers.connectors.delta_log import actions_of, name_of
from workers.connectors.port import RefusedTableError

SINK: Final = "tidefill.sink"
"""What a commit of ours says of itself."""
_CHECKED: Final = ".checked"


def checked(table: DeltaTable, options: DeltaOptions) -> Transaction:
    """Return what the next commit says, if no other program has changed rows since the last one.

    Raises RefusedTableError with the version otherwise. A table that was never looked through begins now.
    """
    name, version = f"{options.app}{_CHECKED}", table.version()
    before = table.transaction_version(name)
    files = Files.of(options)
    for one in range(version + 1 if before is None else before + 1, version + 1):
        if _is_foreign(files, one):
            raise RefusedTableError(
                f"another program has changed rows of the Delta table, whose only writer tidefill is, in version {one}"
            )
    return Transaction(name, version)


def accepted(table: DeltaTable, options: DeltaOptions) -> Transaction:
    """Return the same for a commit that replaces all rows, whoever changed them."""
    return Transaction(f"{options.app}{_CHECKED}", table.version())


def _is_foreign(files: Files, version: int) -> bool:
    if not files.there(name_of(version)):
        return False  # the log begins later: it was cleaned up
    actions = list(actions_of(files, version))
    changes = any((one.get("add") or one.get("remove") or {}).get("dataChange", False) for one in actions)
    return changes and not any(SINK in one.get("commitInfo", {}) for one in actions)
