"""Where tables of a lake may lie."""

import pytest

from service.domain.errors import Invalid
from service.domain.lake_places import ANYWHERE, LakeRoots, below, check_no_loop, check_purge, check_target, located


@pytest.mark.parametrize(
    ("roots", "location", "permitted"),
    [
        (("/lake",), "/lake/orders", True),
        (("/lake/",), "/lake", True),
        (("/lake",), "/lakes/orders", False),
        (("/lake",), "/lake/../etc", False),
        (("s3://bucket/a",), "s3://bucket/a/orders", True),
        (("s3://bucket/a",), "s3://bucket/ab", False),
        (("/lake", "s3://bucket"), "/other", False),
        ((), "/lake", False),
    ],
)
def test_i13_a_location_is_under_a_permitted_place(roots: tuple[str, ...], location: str, *, permitted: bool) -> None:
    ANYWHERE.check(located({"location": location}))
    if permitted:
        LakeRoots(roots).check(located({"location": location}))
        return
    with pytest.raises(Invalid, match="not under one of the permitted places"):
        LakeRoots(roots).check(located({"location": location}))


def test_i13_a_table_does_not_feed_itself() -> None:
    check_no_loop("/lake/a", {"/lake/b"})
    with pytest.raises(Invalid, match="feed itself"):
        check_no_loop("/lake/a", {"/lake/b", "/lake/a"})
    assert located({"location": "file:///lake//b/../a/"}) == located({"location": "/lake/a"}) == "/lake/a"
    assert located({"location": "//lake/a"}) == located({"location": "///lake//a"}) == "/lake/a"


@pytest.mark.parametrize("inner", ["/lake/a", "/lake/a/b", "/lake/a/b/c"])
def test_i13_a_purge_removes_no_other_table(inner: str) -> None:
    check_purge("/lake/a", {"/lake/ab", "/lake"})
    with pytest.raises(Invalid, match=f"another table lies at {inner}"):
        check_purge("/lake/a", {"/lake", inner})


def test_i13_a_target_takes_the_place_of_no_other() -> None:
    """PURGE removed the rows of both, and nobody took the files of a folder any more."""
    folders, targets = {"/lake/files"}, {"/lake/changes": True, "/lake/appended": False}
    check_target("/lake/appended", upsert=False, folders=folders, targets=targets)
    check_target("/lake", upsert=True, folders=folders, targets=targets)
    with pytest.raises(Invalid, match="a table takes the files in /lake/files"):
        check_target("/lake/files", upsert=False, folders=folders, targets=targets)
    for location, upsert in (("/lake/appended", True), ("/lake/changes", True), ("/lake/changes", False)):
        with pytest.raises(Invalid, match=f"the table at {location} is that of another view or sink"):
            check_target(location, upsert=upsert, folders=folders, targets=targets)


@pytest.mark.parametrize(
    ("location", "path", "found"),
    [
        ("/lake", "sales", "/lake/sales"),
        ("/", "eu/sales", "/eu/sales"),
        ("s3://bucket/lake", "eu/sales.1", "s3://bucket/lake/eu/sales.1"),
        *(("/lake", path, None) for path in ("", "..", "../etc", "a/../../etc", "a/.", "/etc", "a//b", "a/")),
    ],
)
def test_i13_a_table_of_a_source_lies_below_its_location(location: str, path: str, found: str | None) -> None:
    if found is not None:
        assert below(location, path) == found
        return
    with pytest.raises(Invalid, match="is no path below /lake"):
        below(location, path)
