"""Traces as values: W3C contexts, spans with their instants, and what is sampled. Pure.

The ids of an epoch's and a job's spans are computed from what they are about. So the leader that ends an epoch needs
nothing of the one that began it, and a span that is sent twice is the same span.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, Literal

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The identity of a span in hexadecimal digits. `sampled`: its trace is recorded."""

    trace: str
    span: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The context as the W3C header of this name has it."""
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """One span that has ended. `process` is the part of tidefill that did the work: `service` or `worker`."""

    name: str
    context: SpanContext
    parent: str | None
    """The span id of the parent, in the same trace."""
    began: datetime
    ended: datetime
    attributes: Mapping[str, str | int | bool] = field(default_factory=dict[str, str | int | bool])
    links: Sequence[SpanContext] = ()
    failed: bool = False
    process: Literal["service", "worker"] = "service"
    serves: bool = False
    """Whether it is the span of a request from outside."""


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the context of a `traceparent` header, or None if it is not valid."""
    found = _TRACEPARENT.fullmatch(text)
    return None if found is None else SpanContext(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))


def root(ratio: float, *about: object, always: bool = False) -> SpanContext:
    """Return the context of a root span. Of many, the share `ratio` is sampled, or all with `always`."""
    digits = _digits(*about)
    # By its last seven bytes, as others sample by ratio: a collector that does so too keeps the same traces.
    sampled = always or int(digits[18:32], 16) < ratio * (1 << 56)
    return SpanContext(digits[:32], digits[32:48], sampled)


def child(parent: SpanContext, *about: object) -> SpanContext:
    """Return the context of a span below `parent`."""
    return SpanContext(parent.trace, _digits(parent.span, *about)[:16], parent.sampled)


def _digits(*about: object) -> str:
    return sha256("/".join(map(str, about)).encode()).hexdigest()
