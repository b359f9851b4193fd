"""Pages of key ranges read every row once, whatever the key, their size, and where vnodes stand (I1, I11)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.protocol.vnodes import Runs
from tests.support.key_shapes import SHAPES, KeyShape
from tests.support.model import Key, ModelPage, VersionedTable, identity
from workers.backfill.order import key_of
from workers.backfill.positions import Block, PageSize, Positions, pages, redistributed

VNODES = 8
EPOCH = 1
WHOLE: Runs = ((0, VNODES - 1),)
PARTS: Sequence[Runs] = (((0, 2),), ((3, 5), (7, 7)), ((6, 6),))


@dataclass(frozen=True)
class Case:
    """What is stored, how far each of some actors reads, and with what pages one reads the rest."""

    shape: KeyShape
    keys: Sequence[Key]
    pages: Sequence[int]
    rows: int
    permits: int | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    keys = draw(st.lists(st.tuples(*map(st.sampled_from, shape.domains)), max_size=60, unique_by=identity))
    read = draw(st.lists(st.integers(0, 9), min_size=len(PARTS), max_size=len(PARTS)))
    return Case(shape, keys, read, draw(st.integers(1, 9)), draw(st.none() | st.just(1_000)))


def stored(case: Case) -> VersionedTable:
    table = VersionedTable(key_of(case.shape.relation), VNODES)
    for key in case.keys:
        table.insert(key, (), EPOCH)
    return table


def read(table: VersionedTable, positions: Positions, case: Case) -> Iterator[ModelPage]:
    def page(block: Block, size: PageSize) -> ModelPage:
        return table.page(EPOCH, block, size)

    yield from pages(positions, page, page_rows=lambda: case.rows, permits=case.permits, more_time=lambda: True)


def seen(case: Case) -> Positions:
    """Have each actor read its pages, give all to one, and have it read the rest. Every row has then been read once."""
    table, times = stored(case), Counter[object]()

    def note(page: ModelPage) -> None:
        times.update(identity(version.key) for version in page.versions)

    parts = [Positions(runs) for runs in PARTS]
    for part, wanted in zip(parts, case.pages, strict=True):
        for _, page in zip(range(wanted), read(table, part, case), strict=False):
            note(page)
    (one,) = redistributed(parts, [WHOLE])
    for page in read(table, one, case):
        note(page)
    assert times == Counter(identity(key) for key in case.keys)
    return one


@settings(derandomize=True, max_examples=150)
@given(cases())
def test_every_row_is_read_once(case: Case) -> None:
    """I1, I11: by actors that were given each other's vnodes half-way."""
    one = seen(case)
    assert one.completed
    assert one.rows == len(case.keys)


@settings(derandomize=True, max_examples=150)
@given(cases())
def test_a_page_is_whole_up_to_its_key(case: Case) -> None:
    """I1: of the vnodes it reached, everything that is left at or before it, which the marking then takes for read."""
    table = stored(case)
    positions = Positions(WHOLE)
    for page in read(table, positions, replace(case, permits=None)):
        for span in positions.next_block():
            rest = table.left_of(EPOCH, span)
            assert not {id(version) for version in rest} & {id(version) for version in page.versions}


def test_a_position_that_goes_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends before where some vnodes of its block stand: they are none of its business."""
    page_of = VersionedTable.page

    def careless(self: VersionedTable, epoch: int, block: Block, size: PageSize) -> ModelPage:
        page = page_of(self, epoch, block, size)
        (upto,) = set(page.reached.values())
        return replace(page, reached=dict.fromkeys((span.vnode for span in block), upto))

    monkeypatch.setattr(VersionedTable, "page", careless)
    with pytest.raises(AssertionError):
        test_every_row_is_read_once()


def test_a_page_that_ends_before_its_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is a key that was not read."""
    page_of = VersionedTable.page

    def short(self: VersionedTable, epoch: int, block: Block, size: PageSize) -> ModelPage:
        page = page_of(self, epoch, block, size)
        (upto,) = set(page.reached.values())
        kept = tuple(one for one in page.versions if upto is None or one.key != self.values(upto))
        return replace(page, versions=kept)

    monkeypatch.setattr(VersionedTable, "page", short)
    with pytest.raises(AssertionError):
        test_every_row_is_read_once()
