"""Holds the code to the layout of the design and to the house conventions that no linter knows.

Each rule is a function from a file's path and source to a list of complaints. It is run over the
whole package, and over a small bad source of its own, so that we know that it can complain.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tokenmill"
Rule = Callable[[str, str], list[str]]

LEVELS = {
    "errors": 0,
    "remote": 0.5,
    **dict.fromkeys(("config", "files", "progress"), 1),
    "folder": 1.5,
    **dict.fromkeys(("sources", "tokenizer", "engine", "store"), 2),
    **dict.fromkeys(("pipeline", "dataset", "interop", "cluster"), 3),
    **dict.fromkeys(("train", "inspector"), 4),
    "cli": 5,
    **dict.fromkeys(("__init__", "__main__"), 6),
}
"""A file imports from its own package and from lower levels; `errors` is below all others."""

ANYWHERE = {"numpy", "msgspec", "xxhash"}
ONLY_IN = {
    "torch": ("dataset/", "train/"),
    "safetensors": ("train/",),
    "triton": ("train/fused_loss.py",),  # comes with torch where there is CUDA
    "resvg_py": ("train/",),
    "ray": ("engine/ray.py",),
    "pyarrow": ("sources/",),
    "obstore": ("remote/client.py",),
    "click": ("cli/",),
    "starlette": ("inspector/",),
    "uvicorn": ("inspector/",),
    "fastokens": ("tokenizer/",),
    "tokenizers": ("tokenizer/",),
    "sentencepiece": ("tokenizer/",),
    "numba": ("tokenizer/",),
    "llvmlite": ("tokenizer/",),
    "huggingface_hub": ("sources/", "tokenizer/"),
    "rich": ("progress.py", "cli/"),
    "yaml": ("config.py",),
    "backports": ("sources/",),
    "compression": ("sources/",),
}
"""Third-party libraries (and the new home of zstd) and the only places that may know of them."""
ONE_FILE = (("pyarrow", "sources/"), ("torch", "dataset/"))
HEAVY = ("torch", "ray", "pyarrow", "obstore", "starlette", "uvicorn", "huggingface_hub", "rich")
HEAVY += ("fastokens", "tokenizers", "sentencepiece", "yaml", "numba")

BANNED_NAMES = {"utils", "util", "common", "base", "manager", "helpers", "misc"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_TRAINING_LOOP_LINES = 150
MACHINE_PATH = re.compile(
    r"(?<![\w.~}/-])/(?:root|work|(?:home|Users)/(?!me\b|you\b|user\b)\w+)/\w"
)

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".html", ".js", ".css", ""}


@dataclass(frozen=True)
class Import:
    """One imported module and where the statement stands: top, typing or function."""

    module: str
    line: int
    place: str
    names: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]

    @property
    def stage(self) -> str:
        """The package or file right under tokenmill, or nothing."""
        parts = self.module.split(".")
        return parts[1] if parts[0] == "tokenmill" and len(parts) > 1 else ""


def imports_of(source: str) -> list[Import]:
    """Return every import in a source, also those inside functions and for type checkers only."""
    return list(_imports(ast.parse(source), "top"))


def _imports(parent: ast.AST, place: str) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, place) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            modules = [f"tokenmill.{n}" for n in names] if _is_root(node) else [_module(node)]
            yield from (Import(module, node.lineno, place, names) for module in modules)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(node, "function")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node, "typing")
        else:
            yield from _imports(node, place)


def _is_root(node: ast.ImportFrom) -> bool:
    return node.module == "tokenmill" and not node.level


def _module(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def stage_of(path: str) -> str:
    """Return the package or file right under tokenmill that a path relative to it belongs to."""
    return path.partition("/")[0].removesuffix(".py")


def wrong_levels(path: str, source: str) -> list[str]:
    """A stage imports lower levels and itself, never sideways or upwards."""
    own = stage_of(path)
    if own not in LEVELS:
        return [f"{path}: {own!r} is not a stage of the design"]
    return [
        f"{path}:{item.line}: {own} (level {LEVELS[own]}) imports {item.module}"
        for item in imports_of(source)
        if item.stage and item.stage != own
        and not (LEVELS.get(item.stage, 99) < LEVELS[own] or _is_store_exception(path, item))
    ]  # fmt: skip


def _is_store_exception(path: str, item: Import) -> bool:
    """`Store.tokenizer()` loads what lies beside the ids: an import at the moment of the call."""
    return (
        stage_of(path) == "store" and item.module == "tokenmill.tokenizer" and item.place != "top"
    )


def wrong_doors(path: str, source: str) -> list[str]:
    """From outside, import the stage; inside a stage, import the file."""
    complaints = []
    for item in imports_of(source):
        folder = PACKAGE / item.stage
        if item.stage == stage_of(path) and item.module == f"tokenmill.{item.stage}":
            if not all((folder / f"{name}.py").exists() for name in item.names):
                complaints.append(f"{path}:{item.line}: inside {item.stage}, import the file")
        elif item.stage != stage_of(path) and item.module.count(".") > 1 and not _is_optional(item):
            complaints.append(f"{path}:{item.line}: {item.module}: import the stage, not its file")
    return complaints


def wrong_libraries(path: str, source: str) -> list[str]:
    """Each library is known at one place; what is not declared is not used."""
    complaints = []
    for item in imports_of(source):
        library = item.library
        if library in {"tokenmill", *ANYWHERE, *sys.stdlib_module_names} - set(ONLY_IN):
            continue
        if library not in ONLY_IN:
            complaints.append(f"{path}:{item.line}: {library} is not a dependency of tokenmill")
        elif not path.startswith(ONLY_IN[library]):
            complaints.append(f"{path}:{item.line}: {library} belongs in {ONLY_IN[library]}")
    return complaints


def late_imports(path: str, source: str) -> list[str]:
    """Imports inside functions are for optional or slow dependencies and for commands."""
    if path.startswith("cli/") or path in {"__init__.py", "__main__.py"}:
        return []
    return [
        f"{path}:{item.line}: import {item.module} at the top of the file"
        for item in imports_of(source)
        if item.place == "function"
        and not _is_optional(item)
        and not _is_store_exception(path, item)
    ]


def _is_optional(item: Import) -> bool:
    """Tell whether a module is, or loads at its top, something that not every user needs."""
    if item.library != "tokenmill":
        return item.library in ONLY_IN
    file = PACKAGE.joinpath(*item.module.split(".")[1:]).with_suffix(".py")
    if not file.exists():
        return False
    return any(i.library in ONLY_IN for i in imports_of(file.read_text()) if i.place == "top")


def relative_imports(path: str, source: str) -> list[str]:
    """Imports are absolute."""
    found = (item for item in imports_of(source) if item.module.startswith("."))
    return [f"{path}:{item.line}: relative import {item.module}" for item in found]


def long_files(path: str, source: str) -> list[str]:
    """A file is at most 500 lines long."""
    num_lines = source.count("\n")
    return [f"{path}: {num_lines} lines"] if num_lines > MAX_FILE_LINES else []


def long_functions(path: str, source: str) -> list[str]:
    """A function is at most 60 lines long; the training loop may reach 150."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            is_loop = path.startswith("train/") and node.name == "train"
            if num_lines > (MAX_TRAINING_LOOP_LINES if is_loop else MAX_FUNCTION_LINES):
                complaints.append(f"{path}:{node.lineno}: {node.name} has {num_lines} lines")
    return complaints


def banned_names(path: str, source: str) -> list[str]:
    """A file is named for what it holds."""
    del source
    words = set(Path(path).stem.split("_")) | set(Path(path).parts[:-1])
    return [f"{path}: the name says nothing"] if words & BANNED_NAMES else []


def import_effects(path: str, source: str) -> list[str]:
    """Importing a module reads no environment and no file, prints nothing, sets up no logging."""
    effect = re.compile(
        r"os\.(environ|getenv)\b|\bopen\(|\bprint\(|logging\.basicConfig|\.read_\w+\("
    )
    complaints = []
    for node in _statements_at_import(ast.parse(source).body):
        match = effect.search(ast.unparse(node))
        if match and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            complaints.append(f"{path}:{node.lineno}: {match[0]} at import time")
    return complaints


def _statements_at_import(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in nodes:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _statements_at_import(node.body)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def machine_paths(path: str, source: str) -> list[str]:
    """No file names a folder of the machine that it was written on."""
    lines = enumerate(source.splitlines(), start=1)
    return [
        f"{path}:{number}: {line.strip()}" for number, line in lines if MACHINE_PATH.search(line)
    ]


def package_files() -> dict[str, str]:
    """Return the sources of the package by their path in it."""
    return {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def project_files() -> dict[str, str]:
    """Return every text of the project that people write."""
    folders = ["src", "tests", "benchmarks", "examples", "docs", ".ci"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    paths += ROOT.glob("*")
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(errors="replace")
        for path in sorted(paths)
        if path.suffix in TEXT_SUFFIXES and path.is_file() and not is_made(path.relative_to(ROOT))
    }


def is_made(path: Path) -> bool:
    """Tell whether a file is a result or belongs to an environment."""
    parts = path.parts
    return any(p in {"data", "__pycache__"} or p.startswith(".venv") for p in parts)


PACKAGE_RULES: list[Rule] = [
    wrong_levels,
    wrong_doors,
    wrong_libraries,
    late_imports,
    relative_imports,
    import_effects,
]
PYTHON_RULES: list[Rule] = [long_files, long_functions, banned_names]

BAD: list[tuple[Rule, str, str]] = [
    (wrong_levels, "store/reader.py", "from tokenmill.sources import Unit"),
    (wrong_levels, "store/reader.py", "from tokenmill import tokenizer"),
    (wrong_levels, "store/reader.py", "import tokenmill.pipeline"),
    (wrong_levels, "files.py", "from tokenmill.config import resolve"),
    (wrong_levels, "plugins/one.py", ""),
    (
        wrong_levels,
        "engine/local.py",
        "try:\n    pass\nexcept OSError:\n    import tokenmill.store",
    ),
    (wrong_doors, "pipeline/plan.py", "from tokenmill.store.format import DOCS_DTYPE"),
    (wrong_doors, "store/reader.py", "from tokenmill.store import Store"),
    (wrong_libraries, "store/reader.py", "import torch"),
    (wrong_libraries, "pipeline/plan.py", "def f():\n    from rich.table import Table"),
    (wrong_libraries, "sources/text.py", "import pandas"),
    (late_imports, "store/reader.py", "def f():\n    import json"),
    (
        late_imports,
        "pipeline/plan.py",
        "class A:\n    def f(self):\n        import tokenmill.store",
    ),
    (relative_imports, "store/reader.py", "from . import format"),
    (relative_imports, "store/reader.py", "from ..errors import DamageError"),
    (import_effects, "store/reader.py", "import os\nHOME = os.environ['HOME']"),
    (import_effects, "store/reader.py", "class A:\n    text = Path('a').read_text()"),
    (long_files, "store/reader.py", "\n" * 501),
    (long_functions, "store/reader.py", "def f():\n" + "    pass\n" * 60),
    (long_functions, "train/loop.py", "def train():\n" + "    pass\n" * 150),
    (long_functions, "train/loop.py", "class A:\n  async def f():\n" + "    pass\n" * 60),
    (banned_names, "store/utils.py", ""),
    (banned_names, "store/shard_manager.py", ""),
    (banned_names, "common/shard.py", ""),
    (machine_paths, "docs/a.md", "see /" + "home/somebody/data"),
    (machine_paths, "docs/a.md", '"/' + 'root/x"'),
]

GOOD: list[tuple[Rule, str, str]] = [
    (wrong_levels, "store/reader.py", "from tokenmill.errors import DamageError"),
    (wrong_levels, "store/reader.py", "def f():\n    from tokenmill.tokenizer import Tokenizer"),
    (wrong_doors, "pipeline/plan.py", "from tokenmill.store import DOCS_DTYPE"),
    (wrong_doors, "store/reader.py", "from tokenmill.store.format import DOCS_DTYPE"),
    (
        wrong_libraries,
        "sources/columns.py",
        "import pyarrow.parquet\nimport numpy as np\nimport os",
    ),
    (late_imports, "sources/columns.py", "def f():\n    import pyarrow"),
    (late_imports, "cli/tokenize.py", "def f():\n    from tokenmill.pipeline import tokenize"),
    (import_effects, "store/reader.py", '"""Use open()."""\ndef f():\n    return open("a")'),
    (long_functions, "store/reader.py", "def f():\n" + "    pass\n" * 59),
    (banned_names, "store/metadata.py", ""),
    (machine_paths, "docs/a.md", "s3://bucket/work/a, ./home/x/y, /tmp/a and /home/me/venv"),
]


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_follows(rule: Rule):
    complaints = [c for path, source in package_files().items() for c in rule(path, source)]
    assert not complaints, "\n".join([rule.__doc__ or "", *complaints])


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_all_python_files_follow(rule: Rule):
    files = {p: s for p, s in project_files().items() if p.endswith(".py")}
    complaints = [
        c for path, s in files.items() for c in rule(path.removeprefix("src/tokenmill/"), s)
    ]
    assert not complaints, "\n".join([rule.__doc__ or "", *complaints])


def test_no_file_names_a_folder_of_one_machine():
    complaints = [c for path, text in project_files().items() for c in machine_paths(path, text)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("library", "folder"), ONE_FILE)
def test_one_file_of_a_stage_knows_the_library(library: str, folder: str):
    knowing = [
        path
        for path, source in package_files().items()
        if path.startswith(folder) and any(i.library == library for i in imports_of(source))
    ]
    assert len(knowing) <= 1, f"{library} is imported by {knowing}"


@pytest.mark.parametrize(("rule", "path", "source"), BAD)
def test_every_rule_can_fail(rule: Rule, path: str, source: str):
    assert rule(path, source)


@pytest.mark.parametrize(("rule", "path", "source"), GOOD)
def test_no_rule_complains_of_what_is_right(rule: Rule, path: str, source: str):
    assert not rule(path, source)


def test_every_rule_is_shown_to_fail():
    rules = {*PACKAGE_RULES, *PYTHON_RULES, machine_paths}
    assert {rule for rule, _, _ in BAD} == rules


@pytest.mark.parametrize(
    "statement", ["import tokenmill", "from tokenmill.cli import main; main(['--help'])"]
)
def test_nothing_heavy_is_loaded_by(statement: str):
    assert loaded_heavy(statement) == []


def test_the_heavy_check_can_fail():
    assert loaded_heavy("import yaml") == ["yaml"]


def loaded_heavy(statement: str) -> list[str]:
    """Run a statement in a fresh interpreter and return the heavy libraries that it loaded."""
    program = f"""
import sys
try:
    {statement}
except SystemExit:
    pass
print("loaded:", *sorted(set(sys.modules) & set({HEAVY!r})))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.rpartition("loaded:")[2].split()
