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
ENTIRE = Followed(4, "entire", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1, identity="full")
