#!/usr/bin/env bash
# A fingerprint in 16 parts as a Slurm job array, merged when all parts are done:
#
#   job=$(sbatch --parsable --array=1-16 slurm-array.sh models/llama parts)
#   sbatch --dependency=afterok:$job --wrap 'surefoot merge parts/*.json --out llama.json'
#
# The model folder and the output folder must be visible on every node.
#SBATCH --job-name=surefoot-fingerprint
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
set -euo pipefail
model=${1:?"usage: sbatch --array=1-N slurm-array.sh MODEL OUT"}
out=${2:?"usage: sbatch --array=1-N slurm-array.sh MODEL OUT"}
mkdir -p "$out"
shard="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
surefoot fingerprint "$model" --shard "$shard" --memory 7GiB --out "$out/$SLURM_ARRAY_TASK_ID.json"
