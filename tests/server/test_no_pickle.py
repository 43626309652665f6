"""CASES SE-01: nothing that executes what it decodes, anywhere in the package."""

from __future__ import annotations

import ast
from pathlib import Path

import octavo

EXECUTES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def test_no_module_that_executes_what_it_decodes_is_imported() -> None:
    files = sorted(Path(octavo.__file__).parent.rglob("*.py"))
    assert len(files) > 50
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert not EXECUTES.intersection(name.split(".")[0] for name in names), file
