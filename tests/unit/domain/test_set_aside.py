"""Items of a chore that fail do not hold up the others (I13)."""

from datetime import UTC, datetime, timedelta

from service.domain.set_aside import FIRST, LONGEST, SetAside

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_one_that_fails_waits_and_the_others_go_on() -> None:
    aside = SetAside[str]()
    assert aside.failed("a", now=NOW) == 1
    assert aside.due(["a", "b"], now=NOW) == ["b"]
    assert aside.due(["a", "b"], now=NOW + FIRST) == ["a", "b"]


def test_its_wait_doubles_up_to_a_limit() -> None:
    aside = SetAside[str]()
    waits: list[timedelta] = []
    for failures in range(1, 20):
        assert aside.failed("a", now=NOW) == failures
        waits.append(aside.wait(now=NOW, longest=timedelta(hours=1)))
    assert waits[:3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert waits[-1] == LONGEST


def test_what_is_gone_is_forgotten() -> None:
    aside = SetAside[str]()
    aside.failed("a", now=NOW)
    aside.keep({"b"})
    assert aside.due(["a"], now=NOW) == ["a"]
    assert aside.wait(now=NOW, longest=LONGEST) == LONGEST
