"""Where tasks run. An engine knows nothing about tokens."""

from tokenmill.engine.local import LocalEngine, available_cores, resolve_workers
from tokenmill.engine.task import Engine, check_stop

__all__ = ["Engine", "LocalEngine", "available_cores", "check_stop", "resolve_workers"]
