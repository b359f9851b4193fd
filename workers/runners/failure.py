"""Decide why an epoch failed: by a job's own fault, or by the environment."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from psycopg import errors

from service.protocol.answering import is_crowded
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId
from service.protocol.relation import Relation
from workers.connectors.port import RefusedRowError, RefusedTableError
from workers.runners.memory_kills import MemoryKills
from workers.state_store.port import TooSlowError

_SQLSTATE: Final = re.compile(r"SQLSTATE: (?P<state>[0-9A-Z]{5})")
_CONDITION: Final = re.compile(r"\[(?P<condition>[A-Z][A-Z0-9_.]+)\][^\n]*")
_ADVICE: Final = re.compile(r' (Use `try_[^.]*\.|If necessary set "[^"]*" to "[^"]*" to bypass this error\.)')
"""Spark's advice to change its settings, which users of tidefill cannot follow."""

# SQLSTATE classes of wrong values or a wrong query: running it again would fail again.
_OWN_FAULT: Final = ("0A", "21", "22", "23", "42", "54", "P0001")
# A value that Postgres refused, as reported by the executor's Python process that wrote it: as CSV, or in binary form.
_REFUSED: Final = re.compile(r"psycopg\.errors\.(?P<name>\w+): (?P<said>[^\n]*)")
_REFUSED_BINARY: Final = re.compile(
    r"\[libpq\][^\n]*ERROR: +(?P<said>[^\n]*).*?SQLSTATE: (?P<state>[0-9A-Z]{5})", re.DOTALL
)
# Spark raises this without an error condition, when the quotient of a remainder has more digits than its decimal type.
_ARITHMETIC: Final = re.compile(r"java\.lang\.ArithmeticException: (?P<said>[^\n]*)")
_BEYOND_SPARK: Final = re.compile(
    "NUMERIC_(VALUE_OUT_OF_RANGE|OUT_OF_SUPPORTED_RANGE)|only the state store|NaN and infinity are not supported"
    "|The value '(NaN|-?Infinity)'"
)
"""The error of a value that Postgres holds, and Spark does not."""
_DUPLICATE: Final = re.compile(
    r"duplicate key value violates unique constraint.*?DETAIL: +Key (?P<key>[^\n]*) already", re.DOTALL
)
_REFUSED_ROW: Final = re.compile(r"Refused(?:Row|Table)Error: (?P<said>[^\n]*)")
"""A row or a table that an external system refuses, as reported by the executor's Python process."""
_EXHAUSTED: Final = re.compile(r"MemoryError|exited with (?:exit )?code 52|OOMKilled")
"""The error text of a task that ran out of memory: in Java, Spark or Python, in another machine's JVM, in its
container.
"""
_PYTHON_ENDED: Final = "Python worker exited unexpectedly"
_KILLS: Final = MemoryKills()
EXHAUSTED: Final = (
    "the worker had no memory left while it computed this: its values may take more memory than a worker has"
)
BESIDE: Final = ", and others that were computed beside it"
TOO_LONG: Final = (
    "a text is too long for a key (about 2,700 bytes after compression); use a digest such as md5(x) in place of x in"
    " GROUP BY, DISTINCT, UNION, INTERSECT and EXCEPT"
)
_TOO_LARGE: Final = ("invalid memory alloc request size", "out of memory")
"""Postgres says so of a value of more than 1 GB, as of an internal error, and where a session exceeds its own limit.
Another attempt needs as much. Of a full lock table it says "out of shared memory".
"""
_UNREADABLE: Final = re.compile(r"ReadRecord failed at row \d+: (?P<said>[^\n]*)")
"""The reader of Postgres's rows cannot read a value, such as an array whose bounds do not begin at 1."""
_OF_SERVER: Final = ("08", "25", "26", "28", "34", "3D", "40", "53100", "53300", "55", "57", "58", "F0", "TF")
"""The connection or the server ended, a disk is full, another transaction won, the generation is over: another run may
succeed. An error without a state is one of these.
"""
_DOUBTFUL: Final = ("23505", "3F", "42501", "427", "42P0", "53000", "53200", "XX")
"""An object that is not there, no room in the lock table, an internal error: the moment may be the cause, or a value
(`x::regclass`). A job that fails so repeatedly is failed. All other states are about values, or about the query.
"""
KEY_SECONDS: Final = 30.0
"""How long the keys of failing rows are searched for, for all jobs that failed in an epoch together. It takes a dozen
jobs of Spark: a second or two, and more on a busy machine.
"""
KEY_SECONDS_SHARED: Final = 10.0
"""The same in the database graph, where everybody waits."""


def find_nothing(_seconds: float) -> str | None:
    """Return no key: the row cannot be searched for."""
    return None


class JobFailedError(Exception):
    """One job's part of the epoch failed: computing `target` from `upstream`.

    `find_key` returns the key of a row that cannot be transformed, within so many seconds. `computing`: an engine was
    running. `others` are the further jobs that failed deterministically in the same epoch.
    """

    def __init__(
        self,
        job: JobId,
        error: BaseException,
        *,
        target: Relation,
        upstream: Relation,
        find_key: Callable[[float], str | None] = find_nothing,
        computing: bool = True,
        kills: MemoryKills = _KILLS,
    ) -> None:
        super().__init__(str(error))
        self.job, self.computing = job, computing
        self.where = f'{target.kind} "{target.name}" (job {job}), reading "{upstream.name}"'
        self.deterministic, reason = explain(error)
        if upstream.lake is not None and (found := _DUPLICATE.search(str(error))) is not None:
            # The owner of the Delta table alone keeps its key unique.
            self.deterministic, reason = True, f"two rows of {upstream.name} have one key: {found['key']}"
        self.too_slow = isinstance(error, TooSlowError)
        self.beyond_spark = _BEYOND_SPARK.search(str(error)) is not None or _ARITHMETIC.search(str(error)) is not None
        # An error that names a value may contain any word, so a deterministic error is never taken for lack of memory.
        self.exhausted = computing and not self.deterministic and _exhausted(str(error), kills)
        self.suspect = self.exhausted or (computing and not self.deterministic and _is_doubtful(error))
        """Whether the job fails if it does so again and again."""
        self.others: tuple[JobFailedError, ...] = ()
        self.exceeding: Collection[JobId] = ()
        """Further jobs for which the time is not left to compute the epoch again."""
        self.beside: tuple[JobId, ...] = ()
        """All jobs that failed with it, if it ran beside others, and one of them may be the cause."""
        self._find_key, self._row = find_key, ""
        self._said = EXHAUSTED if self.exhausted else reason

    def hand_over(self) -> None:
        """Have the graph recover, and the job go on: another engine computes the epoch again."""
        self.deterministic = False
        self._said = f"{self._said}. The state store computes it from now on"

    @property
    def reason(self) -> str:
        """The relation, the row if it was found, and what is wrong, in one line."""
        return f"{self.where}{self._row}: {self._said}"

    def search(self, seconds: float) -> None:
        """Look for the row, if the query or the values are at fault."""
        searches = self.deterministic and not self.too_slow and seconds > 0
        key = self._find_key(seconds) if searches else None
        self._row = "" if key is None else f" at {key}"


def key_seconds(graph: GraphId) -> float:
    """Return how long the rows are searched for in a graph."""
    return KEY_SECONDS_SHARED if graph == DATABASE_GRAPH else KEY_SECONDS


def search_all(failures: Sequence[JobFailedError], clock: Callable[[], float], *, seconds: float) -> None:
    """Look for the row of each failure, for so many seconds in all: meanwhile the whole graph waits."""
    ends = clock() + seconds
    for failure in failures:
        failure.search(ends - clock())


def explain(error: BaseException) -> tuple[bool, str]:
    """Return whether a second run would fail the same way, and the reason in one line."""
    text = str(error)
    if isinstance(error, TooSlowError | RefusedTableError | RefusedRowError):
        return True, text[:500]
    states = [found["state"] for found in _SQLSTATE.finditer(text)]
    own = next((state for state in states if state.startswith(_OWN_FAULT)), None)
    condition = _CONDITION.search(text)
    if own is not None and condition is not None:
        return True, _ADVICE.sub("", condition.group(0))[:500]
    arithmetic = _ARITHMETIC.search(text)
    if arithmetic is not None:
        return True, f"a value is out of range: {arithmetic['said']}"[:500]
    if (row := _REFUSED_ROW.search(text)) is not None:
        return True, row["said"][:500]
    if (unread := _UNREADABLE.search(text)) is not None:
        return True, f"a value cannot be read: {unread['said']}"[:500]
    for refused, state in _refusals(error, text):
        if (state and not state.startswith(_OF_SERVER + _DOUBTFUL)) or refused.startswith(_TOO_LARGE):
            said = TOO_LONG if refused.startswith("index row") else "the state store refused a value"
            return True, f"{said}: {refused}"[:500]
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return False, f"{type(error).__name__}: {first}"[:500]


def _is_doubtful(error: BaseException) -> bool:
    refusals = _refusals(error, str(error))
    return any(state.startswith(_DOUBTFUL) and not is_crowded(state, said) for said, state in refusals)


def _exhausted(text: str, kills: MemoryKills) -> bool:
    """Whether a task ran out of memory. The end of a Python process alone is no proof, because a user may have killed
    it.
    """
    return _EXHAUSTED.search(text) is not None or (_PYTHON_ENDED in text and kills.grew())


def _refusals(error: BaseException, text: str) -> Iterator[tuple[str, str]]:
    """Yield each message of Postgres with its SQLSTATE."""
    if isinstance(error, errors.Error):
        # The worker's own process was refused, and no executor that could only send words.
        yield next(iter(text.splitlines()), ""), error.sqlstate or ""
    for found in _REFUSED.finditer(text):
        yield found["said"], str(getattr(getattr(errors, found["name"], None), "sqlstate", None) or "")
    for found in _REFUSED_BINARY.finditer(text):
        yield found["said"], found["state"]
