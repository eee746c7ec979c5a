"""A hub on this machine: the answers of its API as `hf://` sources need them."""

from __future__ import annotations

import hashlib
import json

from web import File, Web

COMMIT = "a" * 40


def add_repository(
    web: Web,
    files: dict[str, bytes],
    *,
    revision: str = "main",
    commit: str = COMMIT,
    page_files: int = 1000,
    token: str | None = None,
) -> None:
    """Have the server know the dataset org/name: its revision, a paged listing, and its files.

    As on the real hub, large files are redirected to another host, which must not see the token.
    """
    repo = "org/name"
    api = f"/api/datasets/{repo}"
    web.files[f"{api}/revision/{revision}"] = File(
        json.dumps({"id": repo, "sha": commit, "private": bool(token)}).encode(), token=token
    )
    entries = [{"type": "directory", "oid": "0", "size": 0, "path": "data"}]
    for path, data in files.items():
        digest = hashlib.sha256(data).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(data)}
        entry |= {"oid": hashlib.sha1(data).hexdigest()}
        url = f"/datasets/{repo}/resolve/{commit}/{path}"
        if path.endswith((".parquet", ".zst", ".arrow")):
            entry |= {"lfs": {"oid": digest, "size": len(data), "pointerSize": 130}, "size": 130}
            entry["size"] = len(data)
            elsewhere = web.url.replace("127.0.0.1", "localhost")
            web.files[url] = File(redirect=f"{elsewhere}/cdn/{digest}?Signature=x", token=token)
            web.files[f"/cdn/{digest}"] = File(data)
        else:
            web.files[url] = File(data, token=token)
        entries.append(entry)
    listing = f"{api}/tree/{commit}?recursive=true&expand=false"
    for start in range(0, len(entries), page_files):
        page = File(json.dumps(entries[start : start + page_files]).encode(), token=token)
        following = f"{api}/tree/{commit}?recursive=true&expand=false&cursor={start + page_files}"
        if start + page_files < len(entries):
            page.headers["Link"] = f'<{web.url}{following}>; rel="next"'
        web.files[listing] = page
        listing = following
