"""Print the SQL of what a project defines in Python. `service.cli.pipeline_python` starts this in a process of its own.

`pyspark.sql` is sqlframe there, whose DataFrames print Spark's SQL and compute nothing, and `pyspark.pipelines` is the
module here. Each line of input and output is JSON. The first one has the files. A line `{"columns_of": name}` asks for
the columns of a relation, and the next line of input answers. The last line of output has what was found.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

Function = Callable[[], Any]
Columns = Mapping[str, str]
"""Names of columns, with Spark's types. A type that is not known is `unknown`."""
STREAMS: Final = ("table", "append_flow", "create_streaming_table", "create_sink", "create_auto_cdc_flow")
"""The functions of `pyspark.pipelines` that define streams."""


class RefusalError(Exception):
    """A definition that has no meaning here. The message is the reason."""


@dataclass(slots=True)
class Defined:
    """A definition: its statement without the query, the function that gives this, and where it is."""

    begun: str
    function: Function
    path: str
    line: int
    query: str | None = None
    columns: Columns = field(default_factory=dict[str, str])
    runs: bool = False


class Definitions:
    """The definitions in the files of a project. One runs when all files are read, or when another one reads it.

    `columns_of` asks for the columns of any other relation, and raises RefusalError.
    """

    def __init__(self, columns_of: Callable[[str], Columns]) -> None:
        self._columns_of = columns_of
        self._defined: dict[str, Defined] = {}
        self._twice: list[Defined] = []
        self._faults: list[Mapping[str, object]] = []
        self._path = ""

    def module(self) -> ModuleType:
        """Return what stands for `pyspark.pipelines`."""
        found = ModuleType("pyspark.pipelines")
        vars(found).update({name: _streams(name) for name in STREAMS})
        vars(found).update(
            materialized_view=self._decorator("MATERIALIZED VIEW"), temporary_view=self._decorator("TEMPORARY VIEW")
        )
        return found

    def read(self, path: Path, shown: str, spark: object) -> None:
        """Run a file, which defines views."""
        spec = spec_from_file_location(path.stem, path)
        assert spec is not None, path
        assert spec.loader is not None, path
        module = module_from_spec(spec)
        vars(module)["spark"] = spark
        self._path = shown
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # noqa: BLE001 - whatever a file of the project raises
            self._fail(error, shown, 1)

    def columns(self, name: str) -> Columns:
        """Return the columns of a relation, which may be another definition. Raises RefusalError."""
        own = self._defined.get(name)
        if own is None:
            return self._columns_of(name)
        self._run(own)
        return own.columns

    def found(self) -> Mapping[str, object]:
        """Run all definitions; return their statements, and the faults of others."""
        statements: list[Mapping[str, object]] = []
        for one in (*self._defined.values(), *self._twice):
            try:
                self._run(one)
            except Exception as error:  # noqa: BLE001 - whatever a function of the project raises
                self._fail(error, one.path, one.line)
            else:
                statements.append({"path": one.path, "line": one.line, "text": f"{one.begun} AS {one.query}"})
        return {"statements": statements, "faults": self._faults}

    def _run(self, one: Defined) -> None:
        if one.query is not None:
            return
        if one.runs:
            raise RefusalError("it reads itself, directly or through others")
        one.runs = True
        try:
            frame = one.function()
        finally:
            one.runs = False
        if not (hasattr(frame, "sql") and hasattr(frame, "columns")):
            raise RefusalError(f"it returns a {type(frame).__name__}, and no DataFrame")
        one.columns = dict.fromkeys(frame.columns, "unknown")
        # sqlframe's optimizer could make something of it that means something else.
        one.query = frame.sql(dialect="spark", optimize=False, pretty=False)

    def _decorator(self, defines: str) -> Callable[..., object]:
        def decorator(
            query_function: Function | None = None, *, name: str | None = None, **given: Any
        ) -> Callable[[Function], None] | None:
            def define(function: Function) -> None:
                self._define(f"CREATE {defines}", function, name or function.__name__, given)

            return define if query_function is None else define(query_function)

        return decorator

    def _define(self, begun: str, function: Function, name: str, given: Mapping[str, Any]) -> None:
        clauses = "".join(f" {_clause(option, value)}" for option, value in given.items() if value is not None)
        one = Defined(f"{begun} {name}{clauses}", function, self._path, function.__code__.co_firstlineno)
        key = name.rpartition(".")[2].strip("`")
        if key in self._defined:
            self._twice.append(one)
        self._defined.setdefault(key, one)

    def _fail(self, error: Exception, path: str, line: int) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [one.lineno for one in frames if one.lineno and one.filename.endswith(path)]
        said = str(error).partition("\n")[0].partition(". ")[0]
        text = said if isinstance(error, RefusalError) else f"{type(error).__name__}: {said}"
        self._faults.append({"path": path, "line": lines[-1] if lines else line, "text": text})


def _clause(option: str, value: Any) -> str:
    """Return a clause of Spark's SQL. Raises RefusalError."""
    match option:
        case "comment":
            return f"COMMENT {_text(str(value))}"
        case "format":
            return f"USING {value}"
        case "partition_cols":
            return f"PARTITIONED BY ({_names(value)})"
        case "cluster_by":
            return f"CLUSTER BY ({_names(value)})"
        case "table_properties":
            pairs = ", ".join(f"{_text(name)} = {_text(str(one))}" for name, one in dict(value).items())
            return f"TBLPROPERTIES ({pairs})"
        case _:
            raise RefusalError(f"{option} is not supported: cast and name columns in the query, and set nothing")


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(_name, names))


def _name(name: str) -> str:
    return name if name.isidentifier() and name == name.lower() else f"`{name}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _streams(name: str) -> Callable[..., NoReturn]:
    def refuse(*_given: object, **_options: object) -> NoReturn:
        raise RefusalError(f"{name} is not supported: streaming tables are defined in SQL, CREATE STREAMING TABLE")

    return refuse


def _session(columns: Callable[[str], Columns]) -> object:
    """Have sqlframe stand for pyspark, with the columns of relations from `columns`; return its session."""
    from sqlframe import activate  # noqa: PLC0415 - it is imported by this process alone
    from sqlframe.standalone.session import StandaloneSession  # noqa: PLC0415 - see above

    activate("standalone")
    session: Any = StandaloneSession.builder.getOrCreate()

    catalog: Any = session.catalog
    in_full = catalog.ensure_table

    def ensure_table(given: Any) -> Any:
        # The catalog takes names with the same number of parts only. The SQL is checked for what is before a name.
        found = in_full(given).copy()
        found.set("db", None)
        found.set("catalog", None)
        return found

    def get_columns(table: Any) -> Mapping[str, Any]:
        return {_name(one): _Type(kind) for one, kind in columns(ensure_table(table).name).items()}

    catalog.ensure_table, catalog.get_columns = ensure_table, get_columns
    return session


@dataclass(frozen=True, slots=True)
class _Type:
    """A type as sqlframe's catalog asks for it."""

    name: str

    def sql(self, **_options: object) -> str:
        return self.name


def main() -> None:
    """Answer one request on standard input."""
    # The prints of the project go to the terminal, and not among the lines.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(line: Mapping[str, object]) -> None:
        answers.write(f"{json.dumps(line)}\n")
        answers.flush()

    def columns_of(name: str) -> Columns:
        say({"columns_of": name})
        answer = json.loads(sys.stdin.readline())
        if "refused" in answer:
            raise RefusalError(answer["refused"])
        return answer["columns"]

    definitions = Definitions(columns_of)
    spark = _session(definitions.columns)
    sys.modules["pyspark.pipelines"] = definitions.module()
    vars(sys.modules["pyspark"])["pipelines"] = sys.modules["pyspark.pipelines"]
    for shown in json.loads(sys.stdin.readline())["files"]:
        definitions.read(Path.cwd() / shown, shown, spark)
    say(definitions.found())


if __name__ == "__main__":
    main()
