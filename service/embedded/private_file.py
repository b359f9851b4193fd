"""Write files with secrets."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file atomically and durably. It is readable to its owner alone from the first byte."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
