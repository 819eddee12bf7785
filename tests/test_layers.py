"""Imports go down the layers; nothing below a front end knows one."""

import ast
from pathlib import Path

import pytest

import tinykit

ROOT = Path(tinykit.__file__).parent
LAYERS = [
    {"charts", "displays", "plurals", "errors", "interrupts", "markup", "events", "optional", "settings", "progress"},
    {
        "casing", "catalog", "checks", "devices", "disk", "download", "failures", "extraction", "fillers", "focus", "hub", "hub_cache", "hub_listing", "hub_notes", "language", "package_index", "phrases",
        "marks", "model_config", "model_files", "model_spec", "own_models", "pip_config", "reasons", "recipes", "registry", "scripts", "sources", "store", "titles", "token_bytes", "wordlists", "tokenizer", "chat_template",
        "gguf_names", "graph_data", "hub_files", "known_issues", "rows",
    },
    {"convert", "backends"},
    {"generation"},
    {"checkpoints", "folders", "judge_folder", "prepared", "loaded_model", "builds", "fetching", "loading", "placing", "residents"},
    {"session", "answers", "call_options", "choosing", "entitling", "many", "titling", "inventory", "latency", "model_facts", "views", "worker"},
    {"lab", "peers", "tune", "serve", "doctor", "cli", "magics", "widgets", "__main__"},
]  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def top(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """The tinykit modules that a file imports, also late, but not only for type checking."""
    return [name for name in imported(path) if name.startswith("tinykit")]


def imported(path):
    """All modules that a file imports, also late, but not only for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "tinykit":
                yield from (f"tinykit.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down(path):
    assert top(path) in LEVEL, f"{path.name} has no layer in this test"
    for name in imports(path):
        if name in ("tinykit", "tinykit.__version__"):
            continue
        target = name.split(".")[1]
        assert LEVEL[target] <= LEVEL[top(path)], f"{path.relative_to(ROOT)} imports {name} from above"


def test_onnxruntime_is_imported_without_its_telemetry():
    sites = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if "onnxruntime" in imported(path) or "onnxruntime_genai" in imported(path)
    ]
    assert sites == ["optional.py"]


def test_every_layer_name_exists():
    assert set(LEVEL) == {top(path) for path in modules()}


def test_backends_do_not_know_each_other():
    common = {"apart", "base", "nested", "one_thread", "signature", "__init__"}
    for path in (ROOT / "backends").glob("*.py"):
        kind = path.stem.split("_")[0]  # onnx_state.py is part of onnx.py's backend
        others = {p.stem for p in (ROOT / "backends").glob("*.py") if p.stem.split("_")[0] != kind} - common
        assert not {name.split(".")[-1] for name in imports(path) if ".backends." in name} & others


def test_generation_knows_no_concrete_backend():
    for path in (ROOT / "generation").glob("*.py"):
        used = {name for name in imports(path) if name.startswith("tinykit.backends")}
        assert used <= {"tinykit.backends.base"}
        assert "tinykit.registry" not in imports(path)


def test_relative_imports_are_not_used():
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level], path
