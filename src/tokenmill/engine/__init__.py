"""Where tasks run. An engine knows nothing about tokens."""

from tokenmill.engine.cores import available_cores, resolve_workers
from tokenmill.engine.local import LocalEngine
from tokenmill.engine.processes import ProcessEngine
from tokenmill.engine.ray import RayCluster, RayEngine
from tokenmill.engine.speculation import LATE_SECONDS
from tokenmill.engine.task import Engine, check_stop

__all__ = [
    "LATE_SECONDS",
    "Engine",
    "LocalEngine",
    "ProcessEngine",
    "RayCluster",
    "RayEngine",
    "available_cores",
    "check_stop",
    "resolve_workers",
]
