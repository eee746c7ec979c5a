"""Requests to an S3 server that are signed with the standard library alone (AWS Signature 4).

obstore does the real work; it cannot list or abort unfinished uploads, and these requests can.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves who asks; the secrets never show in a printed form."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def signed_request(
    method: str, url: str, *, credentials: Credentials, region: str
) -> urllib.request.Request:
    """Return a request without a body; `url` has its path and query percent-encoded."""
    parts = urlsplit(url)
    now = time.gmtime()
    day, moment = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": parts.netloc, "x-amz-content-sha256": empty, "x-amz-date": moment}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, parts.path or "/", query, lines, names, empty])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join([_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    del headers["host"]  # the library sends it by itself
    base = f"{parts.scheme}://{parts.netloc}{parts.path or '/'}"
    target = f"{base}?{query}" if query else base
    return urllib.request.Request(target, headers=headers, method=method)
