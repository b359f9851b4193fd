"""W3C contexts, and the ids and the sampling of spans."""

import pytest

from service.domain.trace import SpanContext, child, parse_traceparent, root

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_a_header_is_read(flags: str, sampled: bool) -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == SpanContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_header_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_context_is_written_as_it_is_read() -> None:
    for always in (True, False):
        context = root(0, "epoch", 1, always=always)
        assert parse_traceparent(context.traceparent) == context


def test_the_ids_of_a_thing_are_always_the_same_and_those_of_others_differ() -> None:
    assert root(0, "here", "epoch", 1) == root(0, "here", "epoch", 1)
    contexts = [root(0, place, kind, number) for place in "ab" for kind in ("epoch", "job") for number in range(50)]
    assert len({context.trace for context in contexts}) == len(contexts)
    below = [child(contexts[0], name) for name in ("collect", "commit")]
    assert {one.trace for one in below} == {contexts[0].trace}
    assert len({contexts[0].span, *(one.span for one in below)}) == 3


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.1, 800, 1200), (1.0, 10_000, 10_000)])
def test_the_share_that_is_sampled(ratio: float, least: int, most: int) -> None:
    sampled = [root(ratio, "epoch", number) for number in range(10_000)]
    assert least <= sum(context.sampled for context in sampled) <= most
