#!/bin/bash
# Runs the graph on the nodes of a Slurm allocation; one node drives. A job that Slurm stops is queued again and continues.
#     sbatch cluster/slurm.sh                       # all stages that are out of date; or: sbatch cluster/slurm.sh student
#SBATCH --job-name=bdl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
set -eu
cd "${SLURM_SUBMIT_DIR:-$PWD}"
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD:$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE="${RAY_AUTH_MODE:-disabled}" DVC_NO_ANALYTICS=1 OMP_NUM_THREADS=1
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))               # a port of the job's own: two jobs may share a node
cpus=${SLURM_CPUS_PER_TASK:-1}                       # since Slurm 22.05, srun reads this only from its options
gpus=${SLURM_GPUS_ON_NODE:-0}
started=()
end() { trap - TERM INT EXIT; kill "${driver:-}" "${started[@]}" 2>/dev/null || true; wait || true; }
taken() { end; test "${SLURM_JOB_ID:-}" && scontrol requeue "$SLURM_JOB_ID"; exit 0; }
trap taken TERM
trap end INT EXIT
on() {                                               # on NODE OPTIONS: starts one Ray node, which ends with its step
  local node=$1
  shift
  srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --nodelist="$node" --overlap ray start --block \
    --temp-dir="/tmp/ray-$SLURM_JOB_ID" --num-cpus="$cpus" --num-gpus="$gpus" "$@" >"slurm-$SLURM_JOB_ID-$node.log" 2>&1 &
  started+=($!)
}
on "${nodes[0]}" --head --node-ip-address="$head" --port="$port" --include-dashboard=false
export RAY_ADDRESS="$head:$port"
python - <<'WAIT'
import os, socket, sys, time
host, port = os.environ["RAY_ADDRESS"].rsplit(":", 1)
for _ in range(240):
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        sys.exit()
    except OSError:
        time.sleep(0.5)
sys.exit("the head has not started: see slurm-*.log")
WAIT
for node in "${nodes[@]:1}"; do on "$node" --address="$RAY_ADDRESS"; done
python -m pipeline repro -j $((2 * ${#nodes[@]})) "$@" &
driver=$!
wait "$driver"
