"""Connection texts: another login, settings at the start of a session; what an error says about its server."""

import pytest
from psycopg import OperationalError, errors
from psycopg.conninfo import conninfo_to_dict

from service.domain.errors import Conflict, Exhausted, Invalid, Unavailable
from service.serving.connections import translated, url_as, with_settings


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("postgresql://old:secret@db:5433/name?sslmode=require", {"host": "db", "port": "5433", "sslmode": "require"}),
        ("postgresql:///name?host=/run/a%20b&user=old&password=secret", {"host": "/run/a b"}),
        ("postgresql://old@one:1,two:2/name?target_session_attrs=read-write",
         {"host": "one,two", "port": "1,2", "target_session_attrs": "read-write"}),
        ("host=db dbname=name user=old password='se cret'", {"host": "db"}),
        ("postgresql://old@[::1]/name", {"host": "::1"}),
    ],
)  # fmt: skip
def test_another_login_keeps_the_rest(url: str, rest: dict[str, str]) -> None:
    found = conninfo_to_dict(url_as(url, "new@user", "p:/?#[]@ '%"))
    assert found == {"user": "new@user", "password": "p:/?#[]@ '%", "dbname": "name", **rest}


def test_settings_join_those_of_the_url() -> None:
    found = conninfo_to_dict(
        with_settings("postgresql://u@h/d?options=-c%20work_mem%3D1MB", {"DateStyle": "ISO, YMD"}, application_name="x")
    )
    assert found["options"] == "-c work_mem=1MB -c DateStyle=ISO,\\ YMD"
    assert found["application_name"] == "x"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OperationalError("connection refused"), Unavailable),
        (errors.AdminShutdown("x"), Unavailable),
        (errors.DiskFull("x"), Exhausted),
        (errors.QueryCanceled("x"), Exhausted),
        (errors.LockNotAvailable("x"), Unavailable),
        (errors.DeadlockDetected("x"), Unavailable),
        (errors.DuplicateTable("x"), Conflict),
        (errors.TooManyColumns("x"), Invalid),
        (errors.ConfigurationLimitExceeded("x"), errors.ConfigurationLimitExceeded),
        (errors.UndefinedTable("x"), errors.UndefinedTable),
    ],
)
def test_what_an_error_means(raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as found, translated():
        raise raised
    assert type(found.value) is expected


@pytest.mark.parametrize("url", ["postgresql://u:secret@h:x y/d", "secret", "postgresql://u:secret@h/d?nope=1"])
def test_a_bad_url_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        url_as(url, "new", "p")
    assert (
        "secret" not in f"{refused.value}{refused.value.__context__ if not refused.value.__suppress_context__ else ''}"
    )
