"""Where the object store is and who asks: from the environment, or the usual files of AWS.

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL    http:// or https://; else the profile's endpoint_url
    AWS_REGION, AWS_DEFAULT_REGION           else the profile's region, else us-east-1
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    AWS_PROFILE                              a section of ~/.aws/credentials and ~/.aws/config
    AWS_SKIP_SIGNATURE=true                  public buckets, without any credentials

Without keys, the roles of containers and machines are used where the environment offers one.
"""

from __future__ import annotations

import configparser
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tokenmill.errors import ConfigError, StorageError
from tokenmill.remote.signing import Credentials

_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_SWITCHES = ("AWS_PROFILE", "AWS_SKIP_SIGNATURE", "AWS_EC2_METADATA_DISABLED")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
VARIABLES = (*_ENDPOINTS, *_REGIONS, *_KEYS, *_ROLES, *_SWITCHES, *_FILES, "HOME")
"""All that decides which account it is."""

_ELSEWHERE = ("credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile")
_METADATA_SERVER = ("169.254.169.254", 80)
_METADATA_SECONDS = 1.0
_YES = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class Account:
    """An object store and the right to use it."""

    endpoint: str
    """Empty for AWS itself."""
    region: str
    credentials: Credentials | None = field(repr=False)
    """None if a role of the machine or container gives them, or none are wanted."""
    skip_signature: bool = False

    @property
    def shown(self) -> str:
        """The endpoint, for messages."""
        return self.endpoint or f"AWS ({self.region})"

    def address(self, bucket: str, key: str = "") -> str:
        """Return the address of an object for requests of our own; `key` percent-encoded."""
        root = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        return f"{root}/{bucket}/{key}" if key else f"{root}/{bucket}"


def find_account() -> Account:
    """Return the account that the environment and the files describe."""
    profile = _profile()
    endpoint = _first(_ENDPOINTS) or profile.get("endpoint_url", "")
    region = _first(_REGIONS) or profile.get("region", "") or "us-east-1"
    skip = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _YES
    credentials = None if skip else _credentials(profile)
    return Account(_checked(endpoint), region, credentials, skip)


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


def _checked(endpoint: str) -> str:
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise ConfigError(
            "the endpoint in AWS_ENDPOINT_URL has a user or password in it",
            hint="put the keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ConfigError(
            "the endpoint in AWS_ENDPOINT_URL is not an address",
            hint="expected http://host:port or https://host",
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _credentials(profile: dict[str, str]) -> Credentials | None:
    access, secret, token = (os.environ.get(name, "").strip() for name in _KEYS)
    if not (access and secret):
        access = profile.get("aws_access_key_id", "")
        secret = profile.get("aws_secret_access_key", "")
        token = profile.get("aws_session_token", "")
    if access and secret:
        return Credentials(access, secret, token or None)
    elsewhere = [name for name in _ELSEWHERE if name in profile]
    if elsewhere:
        raise StorageError(
            f"the AWS profile {_profile_name()!r} gets its keys by {elsewhere[0]}, "
            "which tokenmill does not do",
            hint='export them first: eval "$(aws configure export-credentials --format env)"',
        )
    if not any(os.environ.get(name) for name in _ROLES) and not _is_cloud_machine():
        raise StorageError(
            "no credentials for the object store were found",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for public "
            "buckets AWS_SKIP_SIGNATURE=true",
        )
    return None


def _is_cloud_machine() -> bool:
    """Tell whether a machine may have a role of its own; asking for one elsewhere takes long."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() in _YES:
        return False
    try:
        with socket.create_connection(_METADATA_SERVER, timeout=_METADATA_SECONDS):
            return True
    except OSError:
        return False


def _profile_name() -> str:
    return os.environ.get("AWS_PROFILE", "").strip() or "default"


def _profile() -> dict[str, str]:
    """Return the settings of the chosen profile; the credentials file goes before the other."""
    name = _profile_name()
    credentials = _read("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    config = _read("AWS_CONFIG_FILE", "~/.aws/config")
    sections = [
        (config, "default" if name == "default" else f"profile {name}"),
        (credentials, name),
    ]
    found = [file[section] for file, section in sections if file.has_section(section)]
    if not found and os.environ.get("AWS_PROFILE", "").strip():
        raise ConfigError(
            f"AWS_PROFILE is {name!r}, and no such profile was found",
            hint="look into ~/.aws/credentials and ~/.aws/config, or unset AWS_PROFILE",
        )
    return {key: value.strip() for section in found for key, value in section.items()}


def _read(variable: str, usual: str) -> configparser.RawConfigParser:
    path = Path(os.environ.get(variable) or usual).expanduser()
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(path.read_text())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="check its permissions") from None
    except (configparser.Error, UnicodeDecodeError):  # their texts may repeat a secret
        raise ConfigError(f"{path}: not a file of AWS settings") from None
    return parser
