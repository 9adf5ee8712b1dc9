#!/bin/bash
# GraphMER on two nodes with two GPUs each:  sbatch --export=ALL,OUTPUT_DIR=/shared/me/runs configs/cluster/slurm.sh
# Submit it from the checkout. OUTPUT_DIR is a folder that every node sees. Checkpoints go there, so that the next job
# resumes the run on any node.
#SBATCH --job-name=graphmer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1        # one torchrun a node; it starts a process for each GPU
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append         # keep the log of the job before
set -euo pipefail

: "${SLURM_JOB_ID:?This script is for sbatch.}"
: "${OUTPUT_DIR:?Give a folder that all nodes see: sbatch --export=ALL,OUTPUT_DIR=/shared/me/runs ...}"
CONFIG=${CONFIG:-configs/graphmer.yaml}
RUN=${RUN:-$(basename "$CONFIG" .yaml)}
SLOTS=${SLOTS:-4}                  # a multiple of all GPUs together; part of the run's identity, so it never changes
PYTHON=${PYTHON:-.venv/bin/python}
PORT=${PORT:-$((20000 + SLURM_JOB_ID % 20000))}   # so that two jobs on a node have two ports
mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# The clock: the run saves and stops by itself before Slurm would end the job.
TRAINBOOK_SESSION_START=$(date +%s)
MINUTES=$(((SLURM_JOB_END_TIME - TRAINBOOK_SESSION_START) / 60))
export TRAINBOOK_SESSION_START
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}   # for a save after scancel; default 30 s

# Without it torch 2.13 keeps the address of its first round, and a node that comes back cannot join.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# c10d: a node that drops out is waited for, and all ranks start again from the newest checkpoint when it is back.
srun --kill-on-bad-exit=1 "$PYTHON" -m torch.distributed.run \
    --nnodes="$SLURM_NNODES" --nproc-per-node="${PROCESSES:-gpu}" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="${HOSTS[0]}:$PORT" \
    -m trainbook train "$CONFIG" --set output_dir="$OUTPUT_DIR" --set run.name="$RUN" \
    --set training.micro_batch_slots="$SLOTS" --set session.minutes="$MINUTES" \
    --set tracking.tensorboard=true   # pip install tensorboard; tensorboard --logdir "$OUTPUT_DIR", on any node

# Every clean stop ends with 0; the summary says which it was.
if grep -q '"reason": "deadline"' "$OUTPUT_DIR/$RUN/summary.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
