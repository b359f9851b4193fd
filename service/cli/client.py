"""Call the service over HTTP for a user's command. A failed call becomes one short message and an exit code.

httpx is loaded by the first call, without its own command line, so that a command starts fast.
"""

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, cast
from urllib.parse import quote

import typer

from service.cli.output import complain

if TYPE_CHECKING:
    import httpx

Url = Annotated[str, typer.Option("--url", envvar="TIDEFILL_URL", help="Where the service is")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="TIDEFILL_API_TOKEN", help="The API token", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts")]
Job = Annotated[str, typer.Argument(help="A job's id, or the name of what it creates", metavar="JOB")]
OneJob = Annotated[str | None, typer.Argument(help="Only this job (id or name)", metavar="[JOB]")]
DEFAULT_URL: Final = "http://127.0.0.1:8700"
_CONNECT_SECONDS: Final = 10.0
"""Only connecting and sending have a limit: a foreground CREATE answers when it is done, however long it takes."""


class ExitCode(IntEnum):
    """The exit codes of a command. 2 is a wrong use of the command line, 4 a verification that found a difference."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNAVAILABLE = 3
    DIFFERS = 4
    INTERRUPTED = 130
    """128 + SIGINT, as a shell reports it."""


class RefusedError(Exception):
    """The service answered with a problem."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        super().__init__(str(problem.get("detail") or f"the service answered {status}"))
        self.problem, self.status = problem, status

    @property
    def exit_code(self) -> ExitCode:
        """`UNAVAILABLE` if the same call may succeed later, otherwise `REFUSED`."""
        return ExitCode.UNAVAILABLE if self.status >= 500 else ExitCode.REFUSED


class UnreachableError(Exception):
    """The service did not answer."""


class CutError(UnreachableError):
    """The connection ended within an answer."""


@dataclass(frozen=True, slots=True)
class Service:
    """Calls that answer with JSON. Raises RefusedError, UnreachableError."""

    http: "httpx.Client"

    def get(self, path: str, **parameters: Any) -> Any:
        """Read a resource. Parameters that are None are left out."""
        return self._call("GET", path, parameters, None)

    def post(self, path: str, body: object = None, **parameters: Any) -> Any:
        """Run an action."""
        return self._call("POST", path, parameters, body)

    def patch(self, path: str, body: object, **parameters: Any) -> Any:
        """Change a resource."""
        return self._call("PATCH", path, parameters, body)

    def delete(self, path: str) -> Any:
        """Remove a resource."""
        return self._call("DELETE", path, {}, None)

    def newest(self, path: str, **parameters: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a list that begins with the newest, page after page."""
        cursor: str | None = None
        while True:
            page = self.get(path, before=cursor, **parameters)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def pages(self, path: str, *, first: int = 0, **parameters: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a list that follow the id `first`, page after page."""
        cursor: str | None = str(first)
        while cursor is not None:
            page = self.get(path, after=cursor, limit=1000, **parameters)
            yield from page["items"]
            cursor = page["next"]

    def items(self, path: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Return a short list that has only one page."""
        found = self.get(path, **parameters)
        return found if isinstance(found, list) else found["items"]

    def lines(self, path: str, **parameters: Any) -> Iterator[str]:
        """Yield the lines of a stream while it comes. Raises CutError if it breaks off."""
        with _failures(), self.http.stream("GET", path, params=parameters) as answer:
            if not answer.is_success:
                answer.read()
                raise RefusedError(problem_of(answer), answer.status_code)
            yield from answer.iter_lines()

    def upload(self, path: str, content: Iterable[bytes], headers: Mapping[str, str], **parameters: Any) -> Any:
        """Send a body of any size in pieces."""
        return self._answer("POST", path, params=_given(parameters), content=content, headers=headers)

    def readiness(self) -> Mapping[str, Any]:
        """Return the answer of `/readyz`, ready or not."""
        with _failures():
            response = self.http.get("/readyz")
        try:
            return response.json()
        except ValueError:
            raise RefusedError(problem_of(response), response.status_code) from None

    def not_ready(self) -> str:
        """Return the service's failed checks, in one line."""
        return "; ".join(f"{name}: {said}" for name, said in self.readiness()["checks"].items() if said != "ok")

    def job_called(self, name: str) -> int:
        """Return the id of a job, given as its id or as the name of its relation."""
        return int(name) if name.isdigit() else int(self.get(f"/v1/relations/{quote(name, safe='')}")["job"])

    def _call(self, method: str, path: str, parameters: Mapping[str, Any], body: object) -> Any:
        return self._answer(method, path, params=_given(parameters), json=body)

    def _answer(self, method: str, path: str, **request: Any) -> Any:
        # JSON always, also from a path that has an event stream.
        headers = {"Accept": "application/json", **request.pop("headers", {})}
        with _failures():
            response = self.http.request(method, path, headers=headers, **request)
        if response.is_success:
            return response.json()
        raise RefusedError(problem_of(response), response.status_code)


def _given(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


@contextmanager
def _failures() -> Generator[None]:
    """Raise UnreachableError where httpx says that there was no answer."""
    import httpx  # noqa: PLC0415 - loaded by `open_http`

    try:
        yield
    except httpx.RemoteProtocolError as error:
        raise CutError(str(error)) from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UnreachableError(str(error)) from error


def open_http(url: str, token: str | None) -> "httpx.Client":
    """Return a client. It connects at the first call. Raises UnreachableError for an impossible URL."""
    # httpx loads its command line if it can, and with it click, pygments and rich: half of a command's start.
    sys.modules.setdefault("httpx._main", cast("Any", None))
    import httpx  # noqa: PLC0415 - only a command that calls the service needs it

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    timeout = httpx.Timeout(_CONNECT_SECONDS, read=None)
    with _failures():
        # Reading the certificates takes as long as loading httpx, and plain HTTP needs none.
        return httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=not url.startswith("http://"))


@contextmanager
def connected(url: str, token: str | None, *, as_json: bool = False) -> Generator[Service]:
    """Yield a service. If a call fails, end the command with a message and an exit code."""
    try:
        with open_http(url, token) as http:
            yield Service(http)
    except RefusedError as error:
        complain(error.problem, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    except UnreachableError as error:
        complain({"detail": f"no service at {url}: {error}"}, as_json=as_json)
        raise typer.Exit(ExitCode.UNAVAILABLE) from None


def problem_of(response: "httpx.Response") -> Mapping[str, Any]:
    """Return the problem that an answer describes, or its status if it describes none."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"detail": f"the service answered {response.status_code}"}
