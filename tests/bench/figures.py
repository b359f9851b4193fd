"""What a run measured, and its arithmetic: percentiles, ratios, medians, and the table at the end. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Sign = Literal[">=", "<=", "<"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be. It is printed beside the figure and never fails a run."""

    sign: Sign
    value: float

    def met(self, value: float) -> bool:
        """Whether a figure is where it should be."""
        match self.sign:
            case ">=":
                return value >= self.value
            case "<=":
                return value <= self.value
            case "<":
                return value < self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; None where it could not be measured, and then `note` says why.

    `samples` are the values that `value` sums up, where there was more than one.
    """

    name: str
    value: float | None
    unit: str
    target: Target | None = None
    note: str = ""
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that belong together."""

    title: str
    figures: tuple[Figure, ...]


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the least of `values` that at least `fraction` of them do not exceed: always a value that occurred.

    Of fewer than a hundred values the 99th percentile is therefore the greatest. Raises ValueError for none.
    """
    if not values:
        raise ValueError("no values have no percentile")
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction lies above 0 and up to 1, not at {fraction}")
    # Rounded first: 0.07 * 100 is a little above 7.
    rank = math.ceil(round(fraction * len(values), 9))
    return sorted(values)[rank - 1]


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, or None where either is unknown. Raises ValueError for a base that is not above 0."""
    if value is None or base is None:
        return None
    if base <= 0:
        raise ValueError(f"nothing compares with {base}")
    return value / base


def per_second(rows: int, seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the rate of each run over the same rows."""
    return tuple(rows / taken for taken in seconds)


def of_samples(
    name: str, samples: Sequence[float], unit: str, *, target: Target | None = None, note: str = ""
) -> Figure:
    """Return the median of `samples` as a figure; with none it was not measured."""
    value = statistics.median(samples) if samples else None
    return Figure(name, value, unit, target, note, tuple(samples))


def table(sections: Sequence[Section]) -> str:
    """Return all figures as plain text, one a line, with targets and whether they are met."""
    lines: list[tuple[str, str, str, str]] = []
    for section in sections:
        lines.append((section.title, "", "", ""))
        lines += [_line(figure) for figure in section.figures]
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:>{widths[1]}}  {target:<{widths[2]}}  {note}".rstrip()
        for name, value, target, note in lines
    )


def as_json(sections: Sequence[Section]) -> list[Mapping[str, Any]]:
    """Return all figures as JSON values."""
    return [
        {"section": section.title, "figures": [_json(figure) for figure in section.figures]} for section in sections
    ]


def _line(figure: Figure) -> tuple[str, str, str, str]:
    target = ""
    if figure.target is not None:
        target = f"{figure.target.sign} {shown(figure.target.value)}"
        if figure.value is not None:
            target += "  met" if figure.target.met(figure.value) else "  MISSED"
    spread = ""
    if len(figure.samples) > 1:
        spread = f"{len(figure.samples)} runs: {shown(min(figure.samples))} to {shown(max(figure.samples))}"
    value = "not measured" if figure.value is None else f"{shown(figure.value)} {figure.unit}".rstrip()
    return f"  {figure.name}", value, target, "; ".join(filter(None, (spread, figure.note)))


def shown(value: float) -> str:
    """Return a number as a person reads it: three digits that count, thousands set apart."""
    magnitude = abs(value)
    if magnitude >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def _json(figure: Figure) -> Mapping[str, Any]:
    target = figure.target
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "target": None if target is None else {"sign": target.sign, "value": target.value},
        "met": None if target is None or figure.value is None else target.met(figure.value),
        "note": figure.note,
        "samples": list(figure.samples),
    }
