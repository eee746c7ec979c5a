"""The part of a batch script that starts a Ray cluster over the nodes of a job, and ends it."""

from __future__ import annotations

from tokenmill.cluster.job import JobSettings
from tokenmill.cluster.quoting import quote
from tokenmill.cluster.settings import SlurmSettings

READY_SECONDS = 300
"""How long nodes may take to join."""
OBJECT_STORE_BYTES = 200_000_000
"""Tokens never pass through Ray's object store: a small one does."""

# Port 0 lets the system choose every port, so that neither another job on a node nor another
# cluster is in the way. Ray itself writes down which one its head got.
_PORTS = (
    "--min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0"
    " --dashboard-agent-grpc-port=0 --metrics-export-port=0"
)

_TEXT = """\
# A Ray cluster over the nodes of this job. Only who has the token can give it work; the token is
# new for each job, and is in the environment of its processes alone.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
ray=("${{python[@]}}" -m ray.scripts.scripts start --block --num-cpus={cpus})
ray+=(--object-store-memory={store} --disable-usage-stats {ports})
other_nodes=$((SLURM_JOB_NUM_NODES - 1))
on_others=({srun} --nodes="$other_nodes" --ntasks="$other_nodes" --ntasks-per-node=1)
on_others+=(--cpus-per-task={cpus} --exclude="$SLURMD_NODENAME" --export=ALL --no-kill)
ray_folder=$(mktemp -d /tmp/tokenmill-ray-XXXXXX) || exit 5 # short: sockets are in it
head='' workers=''
end_ray() {{
    local deadline=$((SECONDS + 40)) pid
    trap '' USR1 TERM
    for pid in $workers $head; do
        kill -TERM "$pid" 2>/dev/null
    done
    for pid in $workers $head; do
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
            sleep 0.2
        done
        kill -KILL "$pid" 2>/dev/null
    done
    [ "$other_nodes" -eq 0 ] || "${{on_others[@]}}" rm -rf -- "$ray_folder"
    rm -rf -- "$ray_folder"
}}
trap end_ray EXIT

# The name under which Slurm itself reaches this node; where that is a name for the node alone, the
# first address that others see.
host=$({scontrol} show node -o "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
address=$(getent ahostsv4 "$host" | awk 'NR == 1 {{ print $1 }}')
case "$host/$address" in
    127.*) ;;
    */127.* | */) address=$(hostname -I | awk '{{ print $1 }}') ;;
esac
"${{ray[@]}}" --head --port=0 --node-ip-address="$address" --temp-dir="$ray_folder/ray" \\
    --include-dashboard=false >"$ray_folder/head.log" 2>&1 &
head=$!
until [ -s "$ray_folder/ray/ray_current_cluster" ]; do
    if ! kill -0 "$head" 2>/dev/null || [ "$SECONDS" -ge {ready} ]; then
        cat "$ray_folder/head.log" >&2
        echo "tokenmill run: Ray's head did not start on $SLURMD_NODENAME" >&2
        exit 1
    fi
    sleep 0.2
done
RAY_ADDRESS=$(cat "$ray_folder/ray/ray_current_cluster")
export RAY_ADDRESS
if [ "$other_nodes" -gt 0 ]; then
    "${{on_others[@]}}" bash -c 'mkdir -p -m 700 -- "$0" && exec "$@" >"$0/worker.log" 2>&1' \\
        "$ray_folder" "${{ray[@]}}" --address="$RAY_ADDRESS" 2>"$ray_folder/srun.log" &
    workers=$!
fi
if ! "${{python[@]}}" -m tokenmill.cluster.ray_ready $((SLURM_JOB_NUM_NODES * {cpus})) {ready}; then
    cat "$ray_folder"/*.log >&2
    exit 1
fi
"""
ENDING = (
    "end_ray # before the job goes back into the queue, which would cut it short\ntrap - EXIT\n"
)


def ray_lines(slurm: SlurmSettings, job: JobSettings) -> list[str]:
    """Return the lines that start the cluster, wait until it is ready, and end it at exit."""
    text = _TEXT.format(
        cpus=job.cpus,
        store=OBJECT_STORE_BYTES,
        ports=_PORTS,
        ready=READY_SECONDS,
        srun=quote(slurm.program("srun")),
        scontrol=quote(slurm.program("scontrol")),
    )
    return text.splitlines()
