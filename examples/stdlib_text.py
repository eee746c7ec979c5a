"""Write the text that every machine with Python has: its library's sources and docstrings.

python examples/stdlib_text.py demo/stdlib.jsonl
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    """Write one JSON line for each module and for each documentation string."""
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    num_documents = num_bytes = 0
    with output.open("w", encoding="utf-8") as file:
        for path in sorted(library.rglob("*.py")):
            if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.parts):
                continue
            for name, text in documents(path, path.relative_to(library).as_posix()):
                file.write(json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n")
                num_documents += 1
                num_bytes += len(text.encode())
    print(f"{output}: {num_documents:,} documents, {num_bytes / 1e6:.1f} MB of text")


def documents(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield a module's source, then the documentation strings in it."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):
        return  # a few modules are broken on purpose
    yield name, source
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield f"{name}:{node.name}", text


if __name__ == "__main__":
    main()
