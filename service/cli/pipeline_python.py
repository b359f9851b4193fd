"""Read what a project defines in Python: DataFrames, of which sqlframe prints the SQL in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from service.domain.errors import Invalid
from service.domain.pipelines import Dataset
from service.protocol.relation import RelationKind
from service.sql.pipelines.datasets import File

ColumnsOf = Callable[[str], Mapping[str, str]]
"""Returns the columns of a relation with Spark's types. Raises Invalid."""
_PROGRAM: Final = (sys.executable, "-m", "service.cli.pipeline_dataframes")


def definitions(root: Path, scripts: Sequence[Path], columns_of: ColumnsOf) -> tuple[list[File], list[Dataset]]:
    """Run scripts below the folder of a project; return their definitions in SQL, and what is refused.

    Raises Invalid if that cannot be done.
    """
    if not scripts:
        return [], []
    if find_spec("sqlframe") is None:
        raise Invalid(f"{scripts[0]}: definitions in Python need sqlframe: pip install 'tidefill[pipelines]'")
    found = _run(root, {"files": [str(one) for one in scripts]}, columns_of)
    files = [File(one["path"], one["text"], one["line"]) for one in found["statements"]]
    places = ((f"{one['path']}:{one['line']}", one["text"]) for one in found["faults"])
    return files, [Dataset(place, RelationKind.VIEW, place, fault=text) for place, text in places]


def _run(root: Path, request: Mapping[str, object], columns_of: ColumnsOf) -> Mapping[str, Any]:
    with subprocess.Popen(  # noqa: S603 - our own program, no shell
        _PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=root
    ) as process:
        assert process.stdin is not None, process
        assert process.stdout is not None, process
        line: Mapping[str, Any] = request
        while "statements" not in line:
            process.stdin.write(f"{json.dumps(line)}\n")
            process.stdin.flush()
            said = process.stdout.readline()
            if not said:
                raise Invalid("the definitions in Python ended their process: see its messages above")
            line = json.loads(said)
            if "columns_of" in line:
                line = _answer(line["columns_of"], columns_of)
        return line


def _answer(name: str, columns_of: ColumnsOf) -> Mapping[str, object]:
    try:
        return {"columns": columns_of(name)}
    except Invalid as error:
        return {"refused": error.message}
