"""Where tables of a lake may lie."""

from functools import partial

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
    there = {"folders": {"/lake/files"}, "tables": {"/lake/read"}}
    check = partial(check_target, **there, targets={"/lake/changes": True, "/lake/appended": False})
    check("/lake/appended", upsert=False)
    for beside in ("/lake/other", "/lake/files/below", "/lake/read", "/lake/changes2"):
        check(beside, upsert=True)
    with pytest.raises(Invalid, match="a table takes the files in /lake/files"):
        check("/lake/files", upsert=False)
    for location, upsert in (("/lake/appended", True), ("/lake/changes", True), ("/lake/changes", False)):
        with pytest.raises(Invalid, match=f"the table at {location} is that of another view or sink"):
            check(location, upsert=upsert)


@pytest.mark.parametrize("location", ["/lake/a/city=Oslo", "/lake/read/x/y", "/lake/b/c", "/lake/b"])
def test_i13_no_target_lies_in_the_folder_of_another_table(location: str) -> None:
    """A PURGE of the one removed files of the other."""
    targets = {"/lake/a": False, "/lake/b/c/d": True}
    with pytest.raises(Invalid, match="none lies in the folder of another"):
        check_target(location, upsert=False, folders=set(), tables={"/lake/read"}, targets=targets)


def test_i13_no_target_has_a_permitted_place_to_itself() -> None:
    roots = LakeRoots(("/lake/", "/lake/a/b", "s3://bucket"))
    for location in ("/lake/b", "s3://bucket/a"):
        roots.check_target(location)
        ANYWHERE.check_target(location)
    for location in ("/lake", "/lake/a", "s3://bucket"):
        with pytest.raises(Invalid, match="choose a location below it"):
            roots.check_target(location)


@pytest.mark.parametrize("part", ["_delta_log", "_tidefill"])
@pytest.mark.parametrize("location", ["/lake/a/{}", "s3://bucket/a/{}/b", "file:///lake/x/../{}/b"])
def test_i13_no_table_lies_among_what_another_one_keeps(location: str, part: str) -> None:
    """A folder with the name of its next commit ended all commits of another caller's table."""
    with pytest.raises(Invalid, match="is a folder of a Delta table's own"):
        ANYWHERE.check(located({"location": location.format(part)}))


def test_i13_a_location_has_a_length() -> None:
    with pytest.raises(Invalid, match="at most 1000 characters"):
        ANYWHERE.check(located({"location": "/a" * 501}))


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
