"""Submit a command to Slurm: settings, a script that can be reviewed, and sbatch."""

from tokenmill.cluster.job import JobSettings
from tokenmill.cluster.quoting import quote
from tokenmill.cluster.script import BatchJob, batch_script
from tokenmill.cluster.settings import ClusterSettings, read_settings
from tokenmill.cluster.submit import Prepared, check_array_size, prepare, submit

__all__ = [
    "BatchJob",
    "ClusterSettings",
    "JobSettings",
    "Prepared",
    "batch_script",
    "check_array_size",
    "prepare",
    "quote",
    "read_settings",
    "submit",
]
