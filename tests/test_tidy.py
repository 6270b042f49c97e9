"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "streamq").rglob("*.py"))
SCRIPTS = sorted((ROOT / "lua").rglob("*.lua"))

MODULE_LINES = 450
FUNCTION_LINES = 60
SCRIPT_LINES = 150


def too_long(source: str, limit: int) -> list[str]:
    """Functions of more than `limit` lines, docstrings not counted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = node.body[0] if ast.get_docstring(node) is not None else None
            doc_lines = 0 if doc is None else (doc.end_lineno or 0) - doc.lineno + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - doc_lines
            if lines > limit:
                found.append(f"{node.name}: {lines} lines")
    return found


def code_lines(source: str) -> int:
    """Lines of a module without docstrings: a facade is one line a method, and as much prose as its users need."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    return len(source.splitlines()) - sum((doc.end_lineno or 0) - doc.lineno + 1 for doc in docs)


def test_the_length_check_can_fail():
    long = "def f():\n    '''Doc.'''\n" + "    x = 1\n" * 61
    assert too_long(long, FUNCTION_LINES) == ["f: 62 lines"]
    assert code_lines(long) == 62


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_are_short(path):
    source = path.read_text("utf-8")
    assert code_lines(source) <= MODULE_LINES
    assert too_long(source, FUNCTION_LINES) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_scripts_are_short(path):
    assert len(path.read_text("utf-8").splitlines()) <= SCRIPT_LINES


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_keys_puts_key_names_together(path):
    if path.name == "keys.py":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(
                r"streamq:\{|:(stream|dead|scheduled|ids|done|meta|workers|wake|data)\b", node.value
            ) or (
                " " in node.value or "\n" in node.value  # prose about keys is no key
            ), node.value


def test_no_module_can_run_code_from_data():
    for path in MODULES:
        imported = {
            name.name.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path


def test_scripts_build_no_keys():
    """A key put together in Lua is a key that is not declared: refused by some servers, in another slot on a cluster."""
    for path in SCRIPTS:
        code = "\n".join(line.partition("--")[0] for line in path.read_text("utf-8").splitlines())
        calls = re.findall(r"redis\.p?call\(\s*('[A-Z]+'),\s*([^,)]+)", code)
        assert all(".." not in key for _, key in calls), (path.name, calls)
