"""What went wrong between us and the object store, in words that help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenmill.errors import StorageError
from tokenmill.remote.account import Account
from tokenmill.remote.urls import split_url

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REASONS = re.compile(r'message: \\?"([^"\\]+)|error: "([^"]+)"')
ODD = 0
_LONGEST_DETAIL = 300
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT_CODES = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"}
_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException"}
_NOT_THERE = 404
_FORBIDDEN = {401, 403}

_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_MEANINGS = {
    "NoSuchBucket": (
        "there is no such bucket",
        "check its name and AWS_ENDPOINT_URL; make it first, tokenmill makes no buckets",
    ),
    "InvalidBucketName": ("the server takes no such name for a bucket", "check its spelling"),
    "SignatureDoesNotMatch": ("the secret key is not the right one", f"check {_KEYS}"),
    "InvalidAccessKeyId": ("the access key is not known there", f"check {_KEYS}"),
    "AccessDenied": (
        "these credentials do not allow it",
        f"ask who runs the bucket for the right, or check {_KEYS}",
    ),
    "RequestTimeTooSkewed": ("the clocks differ too much", "set the clock of this machine"),
    "AuthorizationHeaderMalformed": ("the region is another one", "set AWS_REGION"),
    "PermanentRedirect": ("the bucket is in another region", "set AWS_REGION"),
    "QuotaExceeded": ("the quota of the user or bucket is used up", "free some space"),
    "BadDigest": ("what arrived is not what was sent", "run the same command again"),
}
_MEANINGS |= dict.fromkeys(_EXPIRED, ("the session token has expired", "get a new one"))


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed request."""

    status: int | None
    """What the server answered; None if it did not, `ODD` if that is not what is wrong."""
    code: str = ""
    """The server's own word for it."""
    detail: str = ""
    """What the system says, if the server said nothing."""

    @property
    def is_transient(self) -> bool:
        """Whether another try may work."""
        if self.status is None:
            return True
        return self.status in _TRANSIENT_STATUS or self.code in _TRANSIENT_CODES | _EXPIRED

    @property
    def is_expired(self) -> bool:
        """Whether newer credentials may help."""
        return self.code in _EXPIRED

    @property
    def is_missing(self) -> bool:
        """Whether the object is not there, though the bucket may be."""
        return self.status == _NOT_THERE and self.code != "NoSuchBucket"

    @property
    def is_refusal(self) -> bool:
        """Whether the server refuses for lack of rights."""
        return self.status in _FORBIDDEN


def read_fault(text: str, *, is_network: bool = True) -> Fault:
    """Find the facts in the long text of a failed request.

    `is_network` tells whether it may have failed on the way; else only an answer can say why.
    """
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is None and not is_network:
        return Fault(ODD, detail=" ".join(text.partition("\n")[0].split())[:_LONGEST_DETAIL])
    reasons = [first or second for first, second in _REASONS.findall(text)]
    detail = "no answer in time" if "Timeout" in text or "TimedOut" in text else "no answer"
    return Fault(
        int(status[1]) if status else None,
        code[1] if code else "",
        reasons[-1] if reasons else detail,
    )


def storage_fault(url: str, fault: Fault, *, account: Account) -> StorageError:
    """Return the error for a request that failed for good; it repeats no secret."""
    bucket, _ = split_url(url)
    where = f"{url}: {account.shown}"
    if fault.status is None:
        return StorageError(
            f"{where} cannot be reached: {_scrubbed(fault.detail, account)}",
            hint="check AWS_ENDPOINT_URL and the network, then run the same command again",
        )
    if fault.status == ODD:
        return StorageError(f"{where}: {_scrubbed(fault.detail, account)}")
    code = fault.code or ("AccessDenied" if fault.is_refusal else "")
    meaning, hint = _MEANINGS.get(code, ("", None))
    said = " ".join(word for word in (str(fault.status), fault.code) if word)
    if fault.is_transient and hint is None:
        hint = "the server is busy or broken: run the same command again later"
    what = f"{meaning}: it says {said}" if meaning else f"it says {said}"
    return StorageError(f"{where}: bucket {bucket!r}: {what}", hint=hint)


def _scrubbed(text: str, account: Account) -> str:
    keys = account.credentials
    for secret in () if keys is None else (keys.secret_key, keys.access_key, keys.token):
        if secret:
            text = text.replace(secret, "***")
    return text
