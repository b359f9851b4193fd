"""How large a file may grow, and what stays out of it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(path for room in ("service", "workers", "migrations") for path in (ROOT / room).rglob("*.py"))
LINES_MAX = 400
FUNCTION_LINES_MAX = 40


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_no_file_is_longer_than_one_can_hold_in_mind(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


def test_functions_fit_a_screen() -> None:
    too_long = {
        f"{_name(path)}:{node.lineno} {node.name}": lines
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := _code_lines(node)) > FUNCTION_LINES_MAX
    }
    assert too_long == {}


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    documented = ast.get_docstring(node) is not None
    first = node.body[0]
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - docstring


@pytest.mark.parametrize("path", [path for path in PRODUCT if path.name == "__init__.py"], ids=_name)
def test_packages_hold_a_docstring_and_no_code(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)
