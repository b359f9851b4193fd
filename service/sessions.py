"""Refuse a database URL that leads to a pooler. Sessions of the server are what fences, locks and listens here."""

from typing import Final

import psycopg

from service.domain.errors import Invalid

_KEPT: Final = "tidefill.session"
_REFUSED: Final = (
    "the database is reached through a pooler such as PgBouncer, which gives a client's transactions other sessions or"
    " drops their settings: fences, locks and notifications belong to a session. Use the server's own address"
)


def check_sessions(url: str) -> None:
    """Raise Invalid unless a connection to `url` is one session of the server, with the settings given at its start.

    Two open connections show the same backend behind a pooler that lends a backend for each transaction. A server that
    does not answer is left to the next caller.
    """
    try:
        with _session(url) as one, _session(url) as other:
            if _asked(one) == _asked(other):
                raise Invalid(_REFUSED)
    except psycopg.OperationalError as error:
        if "startup parameter" in str(error):
            raise Invalid(_REFUSED) from error


def _session(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=None, connect_timeout=5, options=f"-c {_KEPT}=kept")


def _asked(session: psycopg.Connection[tuple[object, ...]]) -> object:
    """Return the process that answers. Raises Invalid if the session has lost its settings."""
    found = session.execute("select pg_backend_pid(), current_setting(%s, true)", [_KEPT]).fetchone()
    assert found is not None
    process, kept = found
    if kept != "kept":
        raise Invalid(_REFUSED)
    return process
