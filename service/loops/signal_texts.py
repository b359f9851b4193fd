"""The texts of notifications between the services of an installation.

Anyone who may connect to the database may notify, so texts are signed with a key of the meta store, and the channel's
name is derived from it. A text is `<signature> <sender> <name>=<topic>,<topic> <name>=*`. The signature is checked
before anything is parsed, at a cost that does not depend on what a stranger wrote.
"""

import hmac
from collections.abc import Collection, Mapping
from typing import Final

from service.domain.barrier import Chore
from service.ports.signals import Topic
from service.protocol.ids import GraphId

BYTES_MAX: Final = 7_000
"""Postgres takes 8,000. A longer list of topics is sent as all topics."""
_ALL: Final = "*"
_NONE: Final = "-"
_CHORES: Final = frozenset(Chore)

Hints = Mapping[str, Collection[Topic]]
"""The topics of each name. No topics mean all."""


def channel_of(key: str) -> str:
    """Return the name of the channel. It cannot be guessed without the key."""
    return f"tidefill_{_mac(key, 'channel')}"


def signed(key: str, sender: str, hints: Hints) -> str:
    """Return the text of a sender's signals."""
    said = " ".join([sender, *(f"{name}={_written(topics)}" for name, topics in sorted(hints.items()))])
    if len(said) > BYTES_MAX:
        said = " ".join([sender, *(f"{name}={_ALL}" for name in sorted(hints))])
    return f"{_mac(key, said)} {said}"


def verified(key: str, text: str) -> tuple[str, Hints] | None:
    """Return the sender of a text and its signals, or None if no service of this installation wrote it.

    Topics that are unknown here, as those of the next release, are left out.
    """
    signature, _, said = text.partition(" ")
    if not hmac.compare_digest(signature.encode(), _mac(key, said).encode()):
        return None
    sender, *rest = said.split(" ")
    parts = [part.partition("=") for part in rest]
    return sender, {name: topics for name, _, listed in parts if (topics := _read(listed)) is not None}


def _written(topics: Collection[Topic]) -> str:
    return ",".join(sorted(_NONE if topic is None else str(topic) for topic in topics)) or _ALL


def _read(listed: str) -> Collection[Topic] | None:
    if listed == _ALL:
        return ()
    known = [_topic(one) for one in listed.split(",") if one == _NONE or one.isdecimal() or one in _CHORES]
    return known or None


def _topic(text: str) -> Topic:
    if text == _NONE:
        return None
    return GraphId(int(text)) if text.isdecimal() else Chore(text)


def _mac(key: str, text: str) -> str:
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()[:32]
