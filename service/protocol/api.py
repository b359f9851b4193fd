"""Describe the worker's HTTP API: the routes under `/internal/v1`, and the bodies that are not answers or responses.

The service is the server and a worker long-polls it. Every call is a heartbeat. Every call needs `Authorization: Bearer
<worker token>`.

    POST /internal/v1/workers                  Registration -> Registered
    POST /internal/v1/workers/{id}/leaving     Left, after the wait or as soon as no graph runs on it
    GET  /internal/v1/workers/{id}/barrier     its next Barrier, not of ?taken=<graph>:<epoch>; Gone; or 204
    POST /internal/v1/workers/{id}/answers     Answer -> 204; 410 when the worker or its generation is stale
    GET  /internal/v1/workers/{id}/request     the next Request for ?graph=, or 204 after the wait
    POST /internal/v1/workers/{id}/responses   Response -> 204
    GET  /internal/v1/sources/{id}             how to reach a source: SourceConnection; 404 when there is none
    GET  /internal/v1/secrets?name=            the value of a user's secret: SecretValue; 404 when there is none
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.protocol.ids import Bigint, GraphId, WorkerId

VERSION: Final = 8
"""Grows when a message changes so that the other side would misread it. The service refuses a worker of another
version.
"""
PARALLELISM_MAX: Final = 1 << 15


class Gone(BaseModel):
    """Graphs of which a worker has taken barriers and that are no more: what it computes for them is for nobody."""

    model_config = ConfigDict(frozen=True)

    gone: tuple[Bigint[GraphId], ...]


class Registration(BaseModel):
    """A worker registers once its Spark session is warm."""

    model_config = ConfigDict(frozen=True)

    worker: Annotated[WorkerId, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    graph: Bigint[GraphId]
    version: int = VERSION
    pid: Bigint[int]
    host: str = Field(max_length=255)
    parallelism: int = Field(ge=1, le=PARALLELISM_MAX)
    """How many Spark tasks the worker can run at once. This is the default number of actors of a fragment."""


class Registered(BaseModel):
    """The service has registered the worker.

    `wait_seconds` is how long a long poll may take. `lease_seconds` is how long a silent worker stays registered.
    """

    model_config = ConfigDict(frozen=True)

    wait_seconds: float
    lease_seconds: float
    dml_url: str = Field(repr=False)
    """The state store's URL under the login that runs users' DML; the service generates the password.

    That login can read the views of alive rows and write the versioned tables, and nothing else.
    """


class SecretValue(BaseModel):
    """The value of a secret that a connector's option names."""

    model_config = ConfigDict(frozen=True)

    value: str = Field(repr=False)


class Left(BaseModel):
    """The service knows that the worker is about to end.

    `relieved` is true once another worker is there and no graph runs on this one, so that it may end at no cost.
    """

    model_config = ConfigDict(frozen=True)

    relieved: bool
