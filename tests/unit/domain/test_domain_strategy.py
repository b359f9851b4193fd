"""Which strategy a session's variables choose, and the parallelism of a scan that is tied to its upstream."""

from collections.abc import Mapping

import pytest

from service.domain.errors import Invalid
from service.domain.parallelism import Adaptive, Bounded, Fixed, Parallelism, parse_parallelism
from service.domain.parameters import SESSION_DEFAULTS, parse_session_variable
from service.domain.strategy import check_key, check_serverless, check_tied, chosen, tied_actors
from service.protocol.columns import ColumnType
from service.protocol.plan import ScanType

SNAPSHOT, ARRANGEMENT = "streaming_use_snapshot_backfill", "streaming_use_arrangement_backfill"


@pytest.mark.parametrize(
    ("session", "scan_type", "why"),
    [
        ({}, ScanType.SNAPSHOT_BACKFILL, "default"),
        ({SNAPSHOT: "true", ARRANGEMENT: "true"}, ScanType.SNAPSHOT_BACKFILL, "default"),
        ({ARRANGEMENT: "false"}, ScanType.SNAPSHOT_BACKFILL, "default"),
        ({SNAPSHOT: "false"}, ScanType.ARRANGEMENT_BACKFILL, SNAPSHOT),
        ({SNAPSHOT: "false", ARRANGEMENT: "true"}, ScanType.ARRANGEMENT_BACKFILL, SNAPSHOT),
        ({SNAPSHOT: "false", ARRANGEMENT: "false"}, ScanType.BACKFILL, f"{SNAPSHOT} and {ARRANGEMENT} are off"),
    ],
)
def test_the_session_chooses(session: Mapping[str, str], scan_type: ScanType, why: str) -> None:
    strategy = chosen(session)
    assert strategy.scan_type is scan_type
    assert why in strategy.why
    assert chosen({**SESSION_DEFAULTS, **session}) == strategy


def test_a_worker_of_its_own_needs_a_graph_of_its_own_and_somebody_who_starts_it() -> None:
    check_serverless(chosen({}), own_workers=True)
    with pytest.raises(Invalid, match="only a Snapshot backfill has: the strategy is ARRANGEMENT_BACKFILL, because"):
        check_serverless(chosen({SNAPSHOT: "false"}), own_workers=True)
    with pytest.raises(Invalid, match="Serverless Backfill is disabled"):
        check_serverless(chosen({}), own_workers=False)
    assert parse_session_variable("enable_serverless_backfill", "default") == "false"
    assert parse_session_variable("enable_serverless_backfill", "ON") == "true"


@pytest.mark.parametrize("name", [SNAPSHOT, ARRANGEMENT])
def test_the_variables_are_booleans_that_are_on_by_default(name: str) -> None:
    assert [parse_session_variable(name, text) for text in ("off", "ON", "default")] == ["false", "true", "true"]
    with pytest.raises(Invalid, match=f'"{name}" takes a boolean'):
        parse_session_variable(name, "perhaps")


@pytest.mark.parametrize(
    ("scans", "vnode_count", "actors"), [((), 256, 1), ((4,), 256, 4), ((2, 5, 3), 256, 5), ((7,), 4, 4)]
)
def test_a_scan_that_is_tied_has_the_actors_of_its_upstream(
    scans: tuple[int, ...], vnode_count: int, actors: int
) -> None:
    """A table, a view, a union; no actor goes without a vnode."""
    assert tied_actors(scans, vnode_count) == actors


@pytest.mark.parametrize("asked", [None, Adaptive(), Fixed(3), Bounded(3), parse_parallelism("ratio(0.5)")])
def test_what_comes_to_the_upstreams_parallelism_is_accepted(asked: Parallelism | None) -> None:
    check_tied(asked, 3, slots=6, vnode_count=256, upstream="t")


@pytest.mark.parametrize(("asked", "wanted"), [(Fixed(4), 4), (Bounded(2), 2), (parse_parallelism("ratio(1)"), 6)])
def test_another_parallelism_than_the_upstreams_is_refused(asked: Parallelism, wanted: int) -> None:
    with pytest.raises(Invalid, match=f"has the parallelism of its upstream: that of t is 3, not {wanted}"):
        check_tied(asked, 3, slots=6, vnode_count=256, upstream="t")


def test_spark_orders_no_key_without_a_precision() -> None:
    unbounded = [ColumnType.parse("bigint"), ColumnType.parse("numeric")]
    check_key("m", unbounded, chosen({}))
    arrangement = chosen({SNAPSHOT: "false"})
    check_key("m", [ColumnType.parse("numeric(9,2)")], arrangement)
    with pytest.raises(Invalid, match='"m" has a numeric without a precision in its key'):
        check_key("m", unbounded, arrangement)
