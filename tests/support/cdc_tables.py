"""External tables of every shape that matters: splits, composite keys, a full replica identity, a commit's time."""

from service.protocol.cdc import Split
from tests.support.real_cdc import Followed

NUMBERS = Followed(1, "numbers", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1)
SPLIT = Followed(
    2,
    "split",
    (("id", "bigint"), ("n", "bigint"), ("t", "text")),
    1,
    splits=(Split(right="-10"), Split(left="-10", right="20"), Split(left="20", right="21"), Split(left="21")),
)
TEXTS = Followed(
    3,
    "texts",
    (("a", "text"), ("b", "bigint"), ("n", "bigint"), ("t", "text")),
    2,
    splits=(Split(right="b"), Split(left="b")),
    collation='"C"',
    timestamp="changed_at",
)
STAMPED = Followed(8, "stamped", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1, timestamp="committed_at")
PARTED = Followed(
    9,
    "parted",
    (("id", "bigint"), ("n", "bigint"), ("t", "text")),
    1,
    splits=(Split(right="5"), Split(left="5")),
    partition="range (id)",
    parts=(
        ("low", "for values from (minvalue) to (0)"),
        ("middle", "for values from (0) to (10)"),
        ("high", "for values from (10) to (4000)"),
    ),
)
ENTIRE = Followed(4, "entire", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1, identity="full")
