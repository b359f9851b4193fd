"""What health signals say, and what of a probe's URL may be seen."""

import pytest

from service.domain.adaptive import FAR, Signal
from service.domain.errors import Invalid
from service.domain.health import failed, of_active_queries, of_connections, of_http, of_lag, of_sql
from service.domain.probes import LENGTH_MAX, parse_probe_url

NEVER = float("inf")


def test_what_cannot_be_measured_is_unhealthy() -> None:
    reading = failed(Signal.HTTP_PROBE, "no answer")
    assert (reading.healthy, reading.sure, reading.severity) == (False, True, NEVER)


@pytest.mark.parametrize(
    ("lag_bytes", "healthy", "severity"),
    [(None, True, 0), (0, True, 0), (10 << 20, True, 1), ((10 << 20) + 1, False, 1), (30 << 20, False, 3)],
)
def test_a_replica_that_is_behind(lag_bytes: int | None, healthy: bool, severity: float) -> None:
    reading = of_lag(lag_bytes, bound_mb=10)
    assert (reading.healthy, reading.severity) == (healthy, pytest.approx(severity))


@pytest.mark.parametrize(
    ("used", "healthy", "far"), [(0, True, False), (90, True, False), (91, False, False), (100, False, True)]
)
def test_connections(used: int, healthy: bool, far: bool) -> None:
    reading = of_connections(used, most=100, bound_percent=90)
    assert (reading.healthy, reading.severity >= FAR) == (healthy, far)


@pytest.mark.parametrize(
    ("active", "healthy", "severity"), [(None, True, 0), (0, True, 0), (8, True, 1), (20, False, 2.5)]
)
def test_queries_of_others(active: int | None, healthy: bool, severity: float) -> None:
    reading = of_active_queries(active, bound=8)
    assert (reading.healthy, reading.severity) == (healthy, pytest.approx(severity))


@pytest.mark.parametrize(("status", "healthy"), [(204, True), (200, False), (302, False), (503, False)])
def test_only_the_expected_status_is_healthy(status: int, healthy: bool) -> None:
    assert of_http(status, expected=204, shown="http://h/").healthy == healthy


@pytest.mark.parametrize(
    ("rows", "healthy", "severity"),
    [
        ([[True]], True, 0),
        ([[False]], False, NEVER),
        ([[0]], True, 0),
        ([[10]], True, 0),
        ([["10.00"]], True, 0),
        ([[10.5]], False, 1.05),
        ([["40"]], False, 4),
        ([["Infinity"]], False, NEVER),
        ([["-Infinity"]], True, 0),
        ([["NaN"]], False, NEVER),
        ([[None]], False, NEVER),
        ([["fine"]], False, NEVER),
        ([], False, NEVER),
        ([[]], False, NEVER),
        ([[1, 2]], False, NEVER),
        ([[1], [2]], False, NEVER),
    ],
)
def test_one_value_of_a_query(rows: list[list[object]], healthy: bool, severity: float) -> None:
    reading = of_sql(rows, largest=10)
    assert (reading.healthy, reading.severity) == (healthy, pytest.approx(severity))


@pytest.mark.parametrize(
    ("value", "largest", "healthy"), [(0, 0, True), (0.1, 0, False), (-2, -1, True), (0, -1, False)]
)
def test_a_bound_of_nothing_or_less(value: float, largest: int, healthy: bool) -> None:
    reading = of_sql([[value]], largest=largest)
    assert (reading.healthy, reading.severity) == (healthy, 0 if healthy else NEVER)


@pytest.mark.parametrize(
    ("text", "shown", "to_admins"),
    [
        ("http://h", "http://h/", "http://h/"),
        ("https://h.example:8443/live", "https://h.example:8443/***", "https://h.example:8443/live"),
        ("http://[::1]:80/", "http://[::1]:80/", "http://[::1]:80/"),
        ("http://u:p@h/x", "http://***@h/***", "http://***@h/x"),
        ("http://u:p@ss@h/x", "http://***@h/***", "http://***@h/x"),
        ("http://token@h/x?key=k&a", "http://***@h/***?***", "http://***@h/x?***"),
    ],
)
def test_what_is_secret_in_a_url_is_not_shown(text: str, shown: str, to_admins: str) -> None:
    url = parse_probe_url(text, pointer="p")
    assert (url.shown, url.shown_to_admins) == (shown, to_admins)
    assert shown in repr(url)
    assert parse_probe_url(url.text, pointer="p") == url, "it is stored as it is sent"
    for secret in ("p@ss", "key=k", "token"):
        assert secret not in repr(url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "ftp://h/",
        "http://",
        "http://h:0/",
        "http://h:65536/",
        "http://u:12/secret@h/",
        "http://h/ secret",
        "http://h/secret\nX: y",
        "http://h/#secret",
        "http://secret\u00e9/",
        "http://h/?" + "secret" * LENGTH_MAX,
    ],
)
def test_what_is_no_url_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(Invalid) as error:
        parse_probe_url(text, pointer="the_parameter")
    assert error.value.pointer == "the_parameter"
    assert "secret" not in str(error.value)
