"""What the documents name exists: files in prose, modules in docstrings."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_PATH: Final = re.compile(r"`((?:service|workers|tests|docs|migrations|helm|\.ci)/[\w./-]*)`")
_NEXT: Final = re.compile(r"Next:\s+`([\w.]+)`")


def named_paths() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for found in _PATH.findall(page.read_text()):
            yield page.name, found


def named_modules() -> Iterator[tuple[str, str]]:
    for room in ("service", "workers", "tests"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for found in _NEXT.findall(file.read_text()):
                yield str(file.relative_to(ROOT)), found


@pytest.mark.parametrize(("page", "path"), sorted(set(named_paths())))
def test_a_file_that_a_page_names_exists(page: str, path: str) -> None:
    assert (ROOT / path).exists(), page


@pytest.mark.parametrize(("file", "module"), sorted(set(named_modules())))
def test_a_module_that_a_docstring_names_exists(file: str, module: str) -> None:
    assert find_spec(module) is not None, file
