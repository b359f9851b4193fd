"""The small rules: back-off, placement, leadership, parameters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.adaptive import Bounds
from service.domain.errors import Invalid, NotFound
from service.domain.leadership import LEASE, MARGIN, RENEW_EVERY, Leadership
from service.domain.overhead import Overhead
from service.domain.parallelism import blocks
from service.domain.parameters import (
    SESSION_DEFAULTS,
    SYSTEM,
    SystemParameters,
    bounded,
    parse_bool,
    parse_session_variable,
    parse_system_parameter,
)
from service.protocol.ids import Term
from service.protocol.vnodes import vnodes_of


@settings(max_examples=300, derandomize=True)
@given(st.data())
def test_blocks_partition_the_vnodes_evenly(data: st.DataObject) -> None:
    """I11: every vnode has one actor, every actor a vnode."""
    count = data.draw(st.integers(1, 1024))
    parallelism = data.draw(st.integers(1, count))
    placed = [vnodes_of(runs) for runs in blocks(count, parallelism)]
    assert [vnode for block in placed for vnode in block] == list(range(count))
    sizes = {len(block) for block in placed}
    assert len(placed) == parallelism
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parallelism", [-1, 0, 257])
def test_no_actor_goes_without_a_vnode(parallelism: int) -> None:
    with pytest.raises(Invalid, match="max parallelism 256"):
        blocks(256, parallelism)


def test_trust_is_anchored_at_the_start_of_the_attempt() -> None:
    leading = Leadership.gained(Term(1), attempt_started=100.0)
    trusted = (LEASE - MARGIN).total_seconds()
    assert leading.trusted(100.0 + trusted - 0.001)
    assert not leading.trusted(100.0 + trusted)
    assert 3 * RENEW_EVERY <= LEASE - MARGIN, "three renewals fit a lease"


def test_system_parameters_are_read_from_texts() -> None:
    assert SystemParameters.of({}) == SystemParameters()
    stored = {"barrier_interval_ms": "250", "pause_on_next_bootstrap": "on", "of another release": "x"}
    assert SystemParameters.of(stored) == SystemParameters(barrier_interval_ms=250, pause_on_next_bootstrap=True)
    assert {name: type(getattr(SystemParameters(), name)) for name in SYSTEM} == dict(SYSTEM)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("barrier_interval_ms", 50, 3_600_000),
        ("checkpoint_frequency", 1, 10_000),
        ("max_concurrent_creating_streaming_jobs", 0, 100_000),
        ("serverless_workers_max", 0, 100_000),
        ("backfill_auto_floor", 1, 2_147_483_647),
        ("creating_rows_max", 0, 2**63 - 1),
        ("view_rows_max", 0, 2**63 - 1),
        ("backfill_auto_connections_percent", 0, 100),
        ("backfill_auto_probe_http_status", 100, 599),
        ("backfill_auto_probe_sql_timeout_ms", 1, 10_000),
    ],
)
def test_ranges(name: str, low: int, high: int) -> None:
    assert [parse_system_parameter(name, str(value)) for value in (low, high)] == [low, high]
    for refused in (low - 1, high + 1, "1.5", "", "ten", "1e3", "9" * 5000):
        with pytest.raises(Invalid, match=name) as error:
            parse_system_parameter(name, str(refused))
        assert error.value.pointer == name


def test_bounds_that_were_crossed_are_one_number() -> None:
    assert SystemParameters(backfill_auto_floor=5, backfill_auto_ceiling=9).auto_bounds == Bounds(5, 9)
    assert SystemParameters(backfill_auto_floor=9, backfill_auto_ceiling=5).auto_bounds == Bounds(5, 5)


def test_unknown_names() -> None:
    with pytest.raises(NotFound, match='unrecognized system parameter "x"'):
        parse_system_parameter("x", "1")
    assert parse_session_variable("x", " 1 ") == "1", "one that nobody knows has no effect"


@pytest.mark.parametrize("text", ["1_000", "\u0663", "1e3", "0x10", "1.0", "", "- 1", "9" * 40])
def test_a_number_is_written_in_plain_digits(text: str) -> None:
    with pytest.raises(Invalid, match="takes an integer"):
        parse_system_parameter("checkpoint_frequency", text)
    assert parse_system_parameter("checkpoint_frequency", " +10 ") == 10


@pytest.mark.parametrize("text", ["true", "ON", " yes ", "1", "t"])
def test_true(text: str) -> None:
    assert parse_bool("x", text.strip())
    assert parse_session_variable("background_ddl", text) == "true"


@pytest.mark.parametrize("text", ["false", "Off", "no", "0", "f"])
def test_false(text: str) -> None:
    assert not parse_bool("x", text)
    assert parse_session_variable("background_ddl", text) == "false"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("backfill_rate_limit", "-1", "default"),
        ("backfill_rate_limit", "0", "0"),
        ("backfill_rate_limit", " Auto ", "auto"),
        ("backfill_rate_limit", " 17 ", "17"),
        ("timezone", "Etc/UTC", "UTC"),
        ("streaming_parallelism", "4", "4"),
        ("row_limit", "1", "1"),
        *((name, "DEFAULT", default) for name, default in SESSION_DEFAULTS.items()),
    ],
)
def test_session_variables(name: str, text: str, value: str) -> None:
    assert parse_session_variable(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("background_ddl", "maybe"),
        ("timezone", "Europe/Berlin"),
        ("backfill_rate_limit", "many"),
        ("streaming_parallelism", "0"),
        ("row_limit", "-1"),
        ("statement_timeout", "1s"),
    ],
)
def test_refused_session_variables(name: str, text: str) -> None:
    with pytest.raises(Invalid, match=name):
        parse_session_variable(name, text)


@pytest.mark.parametrize("name", SESSION_DEFAULTS)
def test_defaults_are_normal_texts(name: str) -> None:
    default = SESSION_DEFAULTS[name]
    assert parse_session_variable(name, default) == default


@pytest.mark.parametrize("name", ["backfill_rate_limit", "row_limit", "statement_timeout"])
def test_numbers_of_the_session_are_postgres_integers(name: str) -> None:
    assert parse_session_variable(name, str(2**31 - 1)) == str(2**31 - 1)
    with pytest.raises(Invalid, match=name):
        parse_session_variable(name, str(2**31))


def test_the_overhead_follows_what_is_measured() -> None:
    overhead = Overhead()
    for _ in range(30):
        overhead.measured(latency_seconds=1.1, epoch_seconds=0.8)
    assert overhead.seconds == pytest.approx(0.3, abs=0.001)
    for _ in range(30):
        overhead.measured(latency_seconds=0.5, epoch_seconds=0.8)
    assert 0 <= overhead.seconds < 0.01, "a clock that went back"


def test_c7_session_variables_are_bounded_by_system_parameters() -> None:
    parameters = SystemParameters(row_limit_max=5_000, statement_timeout_max_ms=90_000)
    assert bounded("statement_timeout", "90000", parameters) == 90_000
    with pytest.raises(Invalid, match=r'"statement_timeout" takes at most 90000 .*statement_timeout_max_ms'):
        bounded("statement_timeout", "2147483647", parameters)
    with pytest.raises(Invalid, match=r'"row_limit" takes at most 5000 .*row_limit_max'):
        bounded("row_limit", "5001", parameters)
    assert bounded("row_limit", SESSION_DEFAULTS["row_limit"], parameters) == 5_000
