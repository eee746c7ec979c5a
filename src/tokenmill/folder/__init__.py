"""The folder that a run writes to, on a disk or under a prefix of an object store."""

from tokenmill.folder.ahead import map_ahead
from tokenmill.folder.draft import Draft
from tokenmill.folder.folder import Folder, Reader, open_folder
from tokenmill.folder.local import LocalFolder

__all__ = ["Draft", "Folder", "LocalFolder", "Reader", "map_ahead", "open_folder"]
