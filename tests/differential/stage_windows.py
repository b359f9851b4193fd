"""Random window functions. `stage_queries` has the SELECTs around them."""

from collections.abc import Sequence
from typing import Final

from tests.differential.stage_froms import Froms
from tests.differential.stage_scalars import Col

_FRAMES: Final = (
    "", "", " rows between 1 preceding and current row", " rows unbounded preceding",
    " rows between unbounded preceding and unbounded following", " rows between 1 following and 2 following",
    " rows between 2 preceding and 1 following exclude current row", " rows between current row and 1 following",
)  # fmt: skip
_PEER_FRAMES: Final = (
    "", "", " range between unbounded preceding and current row", " groups between 1 preceding and current row",
    " range between unbounded preceding and unbounded following", " groups between unbounded preceding and 1 preceding",
    " groups between current row and 1 following exclude ties",
    " range between current row and unbounded following exclude group",
)  # fmt: skip


class Windows(Froms):
    """Window functions from a random source."""

    def window(self, cols: Sequence[Col], part: str, *, by_row: bool) -> tuple[str, str]:
        """Return a window function and its kind. With `by_row` it may tell rows apart that are equal in all columns.

        A SELECT has one such function at most: two could order equal rows differently.
        """
        if not by_row or self.chance(0.45):
            return self._of_peers(cols, part)
        total, kind = f"{part}order by {self.total(cols)}", self.kind_of(cols)
        one, number = self.value(kind, cols, 1), self.value("int", cols, 1)
        frame = self.random.choice(_FRAMES)
        text = self.value("txt", cols, 1)
        return self.random.choice(
            (
                (f"row_number() over ({total})", "big"),
                (f"row_number() over ({total})", "big"),
                (f"{self.one_of('lag', 'lead')}({one}) over ({total})", kind),
                (f"{self.one_of('lag', 'lead')}({one}, 2) over ({total})", kind),
                (f"{self.one_of('lag', 'lead')}({number}, 1, 7) over ({total})", "int"),
                (f"first_value({one}) over ({total}{frame})", kind),
                (f"last_value({one}) over ({total} rows between unbounded preceding and unbounded following)", kind),
                (f"last_value({one}) over ({total} rows between 1 preceding and 1 following)", kind),
                (f"nth_value({one}, 2) over ({total} rows between unbounded preceding and 1 following)", kind),
                (f"sum({number}) over ({total}{frame})", "big"),
                (f"count({one}) over ({total}{frame})", "big"),
                (f"string_agg({text}, ',') over ({total}{frame})", "txt"),
                (f"array_agg({number}) over ({total}{frame})", "list"),
                (f"ntile({self.one_of('2', '3')}) over ({total})::bigint", "big"),
            )
        )  # fmt: skip

    def _of_peers(self, cols: Sequence[Col], part: str) -> tuple[str, str]:
        """Return a function that gives equal rows the same."""
        by = self.kind_of(cols)
        number, num = self.value("int", cols, 1), self.value("num", cols, 1)
        peers = (
            f"{part}order by {self.value(by, cols, 0)}{self.one_of('', ' desc', ' nulls first', ' desc nulls last')}"
        )
        if self.chance(0.2):
            peers += f", {self.value(self.kind_of(cols), cols, 0)}"
        frame = self.random.choice(_PEER_FRAMES)
        end = self.one_of("current row", "1 following")
        near = f"{part}order by {number}{self.one_of('', ' desc')} range between 1 preceding and {end}"
        few = f" filter (where {self.condition(cols)})" if self.chance(0.25) else ""
        return self.random.choice(
            (
                (f"{self.one_of('rank', 'dense_rank')}() over ({peers})", "big"),
                (f"{self.one_of('percent_rank', 'cume_dist')}() over ({peers})", "approx"),
                (f"sum({number}){few} over ({peers}{frame})", "big"),
                (f"count(*){few} over ({self.one_of(part, peers, peers + frame, near)})", "big"),
                (f"sum({number}){few} over ({near})", "big"),
                (f"avg({num}){few} over ({self.one_of(peers, part, peers + frame)})", "number"),
                (f"{self.one_of('min', 'max')}({num}){few} over ({self.one_of(peers, part, near)})", "num"),
                (f"bool_or({self.value('bool', cols, 1)}) over ({peers}{frame})", "bool"),
            )
        )

    def part(self, cols: Sequence[Col]) -> str:
        """Return PARTITION BY some values, or nothing."""
        keys = [self.value(self.kind_of(cols), cols, self.random.choice((0, 0, 1))) for _ in range(2)]
        given = self.random.choice(([], keys[:1], keys[:1], keys))
        return f"partition by {', '.join(given)} " if given else ""
