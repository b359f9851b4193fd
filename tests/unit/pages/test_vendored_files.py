"""What pages load is what was checked, all of it comes with the service, and nothing else does."""

import re
from importlib.resources import files

import pytest

from service.pages import render
from service.pages.table import PAGES
from tests.support import vendor

TEMPLATES = sorted((vendor.ROOT / "service/pages/templates").glob("*.html"))


@pytest.mark.parametrize("package", vendor.PACKAGES, ids=lambda one: one.name)
def test_the_files_of_others_are_those_that_were_checked(package: vendor.Package) -> None:
    for _, place, sha256 in package.files:
        assert vendor.digest(place.read_bytes()) == sha256, place
    assert any("LICENSE" in place.name for _, place, _ in package.files)


def test_no_other_file_of_others_is_here() -> None:
    known = {place for package in vendor.PACKAGES for _, place, _ in package.files}
    assert {*vendor.PAGES.iterdir(), *vendor.TESTS.iterdir()} == known


def test_every_file_that_pages_name_is_sent() -> None:
    named = {name for path in TEMPLATES for name in re.findall(r"/static/([^?\"]+)\?", path.read_text())}
    assert named == set(render.TYPES)
    for name in named:
        assert render.static(name)
        assert len(render.version(name)) == 16


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_holds_a_script_a_style_or_unescaped_text(path: object) -> None:
    text = getattr(path, "read_text")()  # noqa: B009
    assert " style=" not in text
    assert "<style" not in text
    assert not re.search(r"<script(?! defer src)", text)
    assert not re.search(r"\son\w+=", text)
    assert "| safe" not in text
    assert "autoescape" not in text


def test_every_page_has_its_template() -> None:
    assert {page.template for page in PAGES} <= {path.name for path in TEMPLATES}
    assert (files("service.pages") / "templates" / "base.html").is_file()
