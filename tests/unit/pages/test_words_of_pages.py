"""How pages write numbers, times, plans and errors."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from typing_extensions import override

from service.domain.errors import Invalid
from service.domain.words import capital, span
from service.operations.statements.outcome import Outcome
from service.operations.status.models import VnodeView
from service.pages import words
from service.pages.acting import limit_of
from service.pages.data.bars import Bar, bar
from service.pages.data.heat import PER_ROW, strip
from service.pages.data.overview import quantile
from service.pages.data.plan import explained, plan
from service.pages.data.sql import ROWS_MAX, SESSION_FIRST, cell, fault_of, session_of, shown
from service.pages.data.steps import HEIGHT, WIDTH, steps
from service.pages.logins import inside
from service.protocol.ids import ActorId, Vnode

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def test_durations_sizes_and_instants_are_as_on_the_command_line() -> None:
    assert [span(one) for one in (None, 7, 61, 3_661)] == ["-", "0:07", "1:01", "1:01:01"]
    assert [words.size(one) for one in (None, 512, 5 << 20)] == ["unknown", "512 B", "5.0 MB"]
    assert words.instant(NOW.astimezone(timezone(timedelta(hours=2)))) == "2026-05-01 12:00:00Z"
    assert words.ago(NOW - timedelta(seconds=90), NOW) == "1:30"
    assert words.ago(NOW + timedelta(seconds=90), NOW) == "0:00"
    assert words.facts({"job": 1, "error": None, "name": "m"}) == "job=1 name=m"
    assert (
        words.facts({"serverless": False, "engines": {"store": {"rows": 7}}})
        == "serverless=no engines=(store=(rows=7))"
    )
    assert words.facts({"auto": [], "jobs": [1, 2], "by": {}}) == "auto=none jobs=1, 2 by=none"


def test_every_state_is_written_with_one_capital() -> None:
    given = ("RUNNING", "not ready", "Created", "broken", "")
    assert [capital(one) for one in given] == ["Running", "Not ready", "Created", "Broken", ""]


def test_a_bar_has_a_number_only_where_the_total_is_known() -> None:
    assert bar(7, None, None).percent is None
    assert bar(7, None, None).text == "7 rows of an unknown number"
    assert bar(60, 200, 30.0).text == "30.0 %: 60 of 200 rows"
    assert bar(300, 200, None).percent == 100.0
    assert bar(0, 0, None) == Bar(0.0, "0.0 %: 0 of 0 rows")


def test_a_strip_has_a_cell_for_each_vnode_and_says_the_same_in_words() -> None:
    states = ["not_started"] * PER_ROW + ["in_progress", "completed"]
    found = strip([VnodeView(Vnode(at), ActorId(1), state, None, 3) for at, state in enumerate(states)])
    assert len(found.cells) == PER_ROW + 2
    assert found.cells[PER_ROW].x == 0 < found.cells[PER_ROW].y
    assert found.text == f"{PER_ROW} not started, 1 in progress, 1 completed"
    assert [state for state, _ in found.key] == ["not_started", "in_progress", "completed"]
    assert strip([]).text == "no vnodes"


def test_a_limit_is_drawn_as_steps() -> None:
    assert steps([]).path == ""
    found = steps([(0.0, 100.0), (10.0, 200.0)])
    assert found.path == f"M0.0 {HEIGHT - 38.0}H{WIDTH - 10.0}V4.0H{WIDTH}"
    assert found.top == 200.0


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(one) for one in range(100)], 0.99) == 99.0


class Counted:
    """A value that counts how often it is encoded."""

    asked = 0

    @override
    def __str__(self) -> str:
        self.asked += 1
        return "said"


def test_i13_of_a_long_list_only_what_is_shown_is_encoded() -> None:
    """A list of 1.4 million numbers stalled everybody for 1.7 s."""
    one = Counted()
    long: list[Any] = [1, [2, None], 'say "hä"', Decimal("1.5"), True, one] * 1000
    text = cell(long, 60)
    assert one.asked < 10
    assert text == json.dumps(long, ensure_ascii=False, default=str)[:60] + "…"
    assert cell([1, [], "x", {"a": [1]}], 60) == '[1, [], "x", {"a": [1]}]'
    assert cell([1, None, 2.5, False], 60) == "[1, null, 2.5, false]"
    assert cell([1] * 1000, 10) == "[1, 1, 1, …"
    assert cell(["x" * 100], 10) == '["xxxxxxxx…'
    assert cell(None, 10) is None


LINES = (
    "StreamMaterialize { name: my view, columns: [a], key: [a], vnodes: 256 }",
    "├─StreamStage { stage: 1, target: __my view_1, operator: join, engine: by rows, type: SNAPSHOT_BACKFILL }",
    "│   input: some orders i0, driver, about 300,000 rows; customers i1, about 2,000 rows",
    '│     on: ("i0"."customer" = "i1"."id")',
    "│   left join: regions i2",
    "└─StreamStage { stage: 2, target: my view, operator: aggregate, engine: store, parallelism: 2 }",
    "    input: __my view_1 i0, driver",
    "Backfill strategy: SNAPSHOT_BACKFILL, because it is the default",
)


def test_a_plan_is_drawn_from_its_lines() -> None:
    found = plan(LINES)
    assert found is not None
    notes = {box.name: box.note for box in found.boxes}
    assert notes == {
        "some orders": "relation",
        "customers": "relation",
        "regions": "relation",
        "__my view_1": "join, engine by rows",
        "my view": "aggregate, engine store",
    }
    assert len(found.paths) == 4
    # A text in a condition is no stage. Looking for one in each place of a long line took a minute.
    said = plan([LINES[0], f"│     on: {LINES[1]}"])
    assert said is not None
    assert said.boxes == ()
    assert plan(["Seq Scan on t"]) is None
    assert plan([]) is None


@pytest.mark.parametrize(
    "name",
    ["m", '"my ""view"" AS x"', "public.m", 'IF NOT EXISTS public . "m"'],
    ids=["plain", "quoted", "schema", "if"],
)
def test_a_view_that_exists_is_explained_under_a_free_name(name: str) -> None:
    found = explained(f"CREATE materialized\n VIEW {name} AS SELECT 1 AS a FROM t")
    assert found == 'EXPLAIN CREATE MATERIALIZED VIEW "__explained" AS SELECT 1 AS a FROM t'


def test_nothing_else_is_explained() -> None:
    assert explained("CREATE TABLE t (id int primary key)") is None
    assert explained("CREATE SINK k FROM m WITH (connector = 'blackhole')") is None


def test_an_error_marks_its_place_also_behind_explain() -> None:
    sql = "SELECT id,\n\tbad FROM t"
    found = fault_of(Invalid("no", position=13), sql, 0)
    assert (found.line, found.mark) == ("\tbad FROM t", "\t^")
    assert fault_of(Invalid("no", position=13 + 8), sql, 8) == found
    assert fault_of(Invalid("no"), sql, 0).line == ""
    assert fault_of(Invalid("no", position=99), "", 8).mark == "^"


def test_a_result_is_cut_and_says_so() -> None:
    found = shown("", Outcome("SELECT", (("a", "int"),), tuple((one,) for one in range(ROWS_MAX + 1))))
    assert len(found.rows) == ROWS_MAX
    assert found.truncated
    values = shown("", Outcome("SELECT", (("a", "int"),), ((None,), ({"b": "é"},), ("x" * 5_000,)))).rows
    assert [values[0][0], values[1][0], len(values[2][0] or "")] == [None, '{"b": "é"}', 2_001]


def test_a_wide_result_has_fewer_rows_and_shorter_values() -> None:
    columns = tuple((f"c{one}", "text") for one in range(500))
    found = shown("", Outcome("SELECT", columns, (("x" * 3_000,) * 500,) * 1_000))
    assert len(found.rows) == 100
    assert found.truncated
    assert sum(len(one or "") for row in found.rows for one in row) <= 4_100_000


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "[" * 50_000, "7"])
def test_a_session_that_is_none_is_the_first_one(text: str) -> None:
    assert session_of(text) == SESSION_FIRST


def test_a_session_is_that_of_the_last_answer() -> None:
    assert session_of('{"background_ddl": "false"}') == {"background_ddl": "false"}


@pytest.mark.parametrize(("text", "limit"), [("0", 0), (" 1000 ", 1000), ("AUTO", "auto"), ("unlimited", None)])
def test_a_limit_is_a_number_or_a_word(text: str, limit: int | str | None) -> None:
    assert limit_of(text).backfill_rate_limit == limit


@pytest.mark.parametrize("text", ["", "-1", "1.5", "fast", "999999999999", "٣"])
def test_another_limit_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        limit_of(text)


@pytest.mark.parametrize(
    "address",
    [
        "http://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "jobs",
        "",
        "/\t/evil.example",
        "javascript:alert(1)",
        "//[",
        "http://[",
    ],
)
def test_no_form_leads_to_another_site(address: str) -> None:
    assert inside(address) == "/"


def test_a_form_leads_to_a_page_with_its_query() -> None:
    assert inside("/jobs?state=all&after=7") == "/jobs?state=all&after=7"
