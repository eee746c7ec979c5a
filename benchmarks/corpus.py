"""Make several hundred MB of varied real text for benchmarks, from what Debian machines can get.

The text is documentation: HTML pages stripped to text, plain text, manual pages in several
languages and source code, from Debian packages that are downloaded and unpacked but not installed.
Where there is no `apt-get`, the documentation and the Python sources of the machine have to do.

The same trees and the same size give the same documents in the same order. No document comes twice,
and lines that a site repeats on every page are kept a few times only. The documents are written
three times: `docs.txt` (one document a line, its own line breaks turned into spaces), `docs.jsonl`
and `docs.parquet` (line breaks kept). `corpus.json` says how many documents and bytes there are.

    python benchmarks/corpus.py                       # 600 MB into benchmarks/data
    python benchmarks/corpus.py --mb 50 -o DIR --from UNPACKED_TREE
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "data"
PACKAGES = (
    "cppreference-doc-en-html debian-handbook erlang-doc ghc-doc gnumeric-doc libboost1.81-doc "
    "libeigen3-doc libstdc++-12-doc linux-doc-6.1 manpages manpages-de manpages-dev manpages-es "
    "manpages-fr manpages-ja manpages-ru manpages-zh nodejs-doc octave-doc opencv-doc "
    "openjdk-17-doc perl-doc postgresql-doc-15 python-django-doc python-pandas-doc "
    "python-scipy-doc python-sklearn-doc python3.11-doc qtbase5-doc-html qtdeclarative5-doc-html "
    "r-base-html rust-doc vim-doc vtk9-doc wx3.2-doc"
)
"""Debian packages that hold little but documentation; one that a release lacks is passed over."""

PAGES = {".html", ".htm", ".xhtml"}
PLAIN = {".txt", ".md", ".rst", ".pod", ".py", ".c", ".h", ".cpp", ".hpp", ".erl", ".rs", ".java"}
MANUAL_SECTION = re.compile(r"\.[1-8][a-z]*$")
MIN_BYTES = 200
MAX_BYTES = 1_000_000
MAX_REPEATS = 4
"""How often one line may come in the whole corpus; what a site repeats on every page is no text."""
SHORT_LINE = 20
"""Lines of fewer characters may repeat: a closing bracket is not a menu."""
MAX_SHARE = 1 / 6
"""The most that one package may give, so that no site's style rules the corpus."""
ROWS_PER_GROUP = 10_000


@dataclass(frozen=True, slots=True)
class Document:
    """One text and the name of the file that it comes from, relative to its tree."""

    text: str
    source: str


def main() -> None:
    """Make the corpus unless it is there already."""
    arguments = _arguments()
    folder: Path = arguments.output
    wanted_bytes = arguments.mb * 1_000_000
    summary = folder / "corpus.json"
    if summary.exists() and json.loads(summary.read_text())["wanted_bytes"] == wanted_bytes:
        print(f"{folder}: already made", file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    trees = arguments.trees or _fetch_packages(folder / "packages")
    documents = list(_distinct(_read_trees(trees), wanted_bytes=wanted_bytes))
    random.Random(1).shuffle(documents)  # a package that has given its share ends early otherwise
    facts = _write(iter(documents), folder)
    facts["wanted_bytes"] = wanted_bytes
    if facts["text_bytes"] < wanted_bytes:
        print(f"only {facts['text_bytes'] / 1e6:.0f} MB of text were found", file=sys.stderr)
    summary.write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make text for the benchmarks.")
    parser.add_argument("-o", "--output", type=Path, default=DATA, help="folder to write into")
    parser.add_argument("--mb", type=int, default=600, help="MB of text to make (default 600)")
    help_text = "an unpacked tree to read instead of downloading; may be repeated"
    parser.add_argument("--from", dest="trees", type=Path, action="append", help=help_text)
    return parser.parse_args()


def _fetch_packages(folder: Path) -> list[Path]:
    """Download and unpack the packages under `folder`; without apt, find texts of the machine."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        print("no apt-get here: reading the documentation of this machine", file=sys.stderr)
        return _local_trees()
    tree = folder / "tree"
    debs = folder / "debs"
    for path in (tree, debs):
        path.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES.split():
        print(f"fetching {package}", file=sys.stderr)
        command = ["apt-get", "download", "-qq", package]
        if subprocess.run(command, cwd=debs, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"{package}: not available, passed over", file=sys.stderr)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", deb.name, tree.resolve()], cwd=debs, check=True)
    return [tree] if any(tree.iterdir()) else _local_trees()


def _local_trees() -> list[Path]:
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    return [
        path for path in (Path("/usr/share/doc"), Path("/usr/share/man"), *own) if path.is_dir()
    ]


def _read_trees(trees: list[Path]) -> Iterator[Document]:
    """Yield the text of every readable file, in an order that depends on the file names alone."""
    jobs = [
        (str(Path(root, name)), Path(root, name).relative_to(tree).as_posix())
        for tree in trees
        for root, _, names in os.walk(tree)
        for name in names
        if _kind(name)
    ]
    jobs.sort(key=lambda job: job[1])
    random.Random(0).shuffle(jobs)
    with multiprocessing.Pool() as pool:
        for document in pool.imap(_read, jobs, chunksize=32):
            if document is not None:
                yield document


def _kind(name: str) -> str:
    """Return how the file `name` is to be read: page, plain, manual, or "" for not at all."""
    name = name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix in PAGES:
        return "page"
    if suffix in PLAIN:
        return "plain"
    return "manual" if MANUAL_SECTION.search(name) else ""


def _read(job: tuple[str, str]) -> Document | None:
    path, source = job
    try:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
        text = data.decode()
    except (OSError, EOFError, ValueError, zlib.error):
        return None  # links into packages that are not here, other encodings
    kind = _kind(path)
    if kind == "page":
        text = page_text(text)
    elif kind == "manual":
        text = manual_text(text)
    text = text.replace("\r", "").replace("\x00", "").strip()
    return Document(text, source) if MIN_BYTES <= len(text) <= MAX_BYTES else None


_HIDDEN = re.compile(
    r"<!--.*?-->|<(head|script|style|nav|svg|header|footer)\b.*?</\1\s*>", re.S | re.I
)
_BLOCK = re.compile(
    r"\s*</?(?:p|div|br|li|ul|ol|dl|dt|dd|h[1-6]|table|tr|pre|section|article|blockquote|hr)\b[^>]*>",
    re.I,
)
_CELL = re.compile(r"\s*</?(?:td|th)\b[^>]*>\s*", re.I)
_TAG = re.compile(r"<[^>]*>")
_GAP = re.compile(r"(?<=\S)[ \t\xa0]{2,}")
_BLANK = re.compile(r"[ \t\xa0]*\n[ \t\xa0\n]*\n")


def page_text(page: str) -> str:
    r"""Return the text of an HTML page, roughly: fast, and good enough to measure with.

    >>> page_text("<head>x</head><h1>One</h1><p>a &lt; b<br>c <i>d</i></p><script>e</script>")
    'One\n\na < b\nc d'
    """
    text = _HIDDEN.sub(" ", page)
    text = _TAG.sub("", _CELL.sub(" ", _BLOCK.sub("\n", text)))
    return _BLANK.sub("\n\n", _GAP.sub(" ", html.unescape(text))).strip()


_ROFF_COMMENT = re.compile(r"^[.']\\\".*\n?", re.M)
_ROFF_REQUEST = re.compile(r"^[.'][A-Za-z]+[ \t]*", re.M)
_ROFF_ESCAPE = re.compile(r"\\f(?:\[\w*\]|\(..|.)|\\[&|^]|\\s[+-]?\d")


def manual_text(source: str) -> str:
    r"""Return the text of a manual page, roughly.

    >>> manual_text('.\\" note\n.SH NAME\nls \\- \\fBlist\\fR files\n')
    'NAME\nls - list files\n'
    """
    text = _ROFF_ESCAPE.sub("", _ROFF_REQUEST.sub("", _ROFF_COMMENT.sub("", source)))
    return text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def _distinct(documents: Iterator[Document], *, wanted_bytes: int) -> Iterator[Document]:
    """Pass on documents that were not there before, without worn-out lines, up to a total size."""
    seen: set[bytes] = set()
    repeats = bytearray(1 << 26)  # a count per line hash: a few false matches cost a few lines
    num_bytes = 0
    shares: Counter[tuple[str, ...]] = Counter()
    for document in documents:
        package = Path(document.source).parts[:4]  # usr/share/doc/NAME
        if shares[package] > MAX_SHARE * wanted_bytes:
            continue
        text = "\n".join(line for line in document.text.split("\n") if _is_fresh(line, repeats))
        data = text.encode()
        digest = hashlib.blake2b(data, digest_size=12).digest()
        if len(data) < MIN_BYTES or digest in seen:
            continue
        seen.add(digest)
        yield Document(text, document.source)
        num_bytes += len(data)
        shares[package] += len(data)
        if num_bytes >= wanted_bytes:
            return


def _is_fresh(line: str, repeats: bytearray) -> bool:
    line = line.strip()
    if len(line) < SHORT_LINE:
        return True
    slot = zlib.crc32(line.encode()) % len(repeats)
    repeats[slot] = min(repeats[slot] + 1, 255)
    return repeats[slot] <= MAX_REPEATS


def _write(documents: Iterator[Document], folder: Path) -> dict[str, int]:
    """Write all documents in the three formats; return the counts for the summary."""
    schema = pa.schema([("text", pa.string()), ("source", pa.string())])
    num_documents = text_bytes = 0
    with (
        (folder / "docs.txt").open("wb") as lines,
        (folder / "docs.jsonl").open("wb") as objects,
        pq.ParquetWriter(folder / "docs.parquet", schema, compression="zstd") as table,
    ):
        for group in _groups(documents):
            lines.writelines(" ".join(d.text.split()).encode() + b"\n" for d in group)
            objects.writelines(msgspec.json.encode(d) + b"\n" for d in group)
            columns = [[d.text for d in group], [d.source for d in group]]
            table.write_table(pa.table(columns, schema=schema), row_group_size=ROWS_PER_GROUP)
            num_documents += len(group)
            text_bytes += sum(len(d.text.encode()) for d in group)
            print(f"{num_documents:,} documents, {text_bytes / 1e6:,.0f} MB", file=sys.stderr)
    sizes = {
        f"{n}_bytes": (folder / f"docs.{n}").stat().st_size for n in ("txt", "jsonl", "parquet")
    }
    return {"num_documents": num_documents, "text_bytes": text_bytes, **sizes}


def _groups(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while group := list(itertools.islice(documents, ROWS_PER_GROUP)):
        yield group


if __name__ == "__main__":
    main()
