#!/bin/sh
#SBATCH --job-name=headway-trials-0a1b
#SBATCH --comment="headway 3 trials"
#SBATCH --array=0-2%2
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=31
#SBATCH --signal=B:TERM@50
#SBATCH --open-mode=append
#SBATCH --output="/runs of 100%%/0/detached/array-%A_%a.log"
#SBATCH --partition=a100,h200
#SBATCH --account=speech
#SBATCH --requeue
#SBATCH --gpus-per-node=8
#SBATCH --constraint=ib&nvme
export PYTHONPATH=/opt/headway PYTHONSAFEPATH=1
case "$SLURM_ARRAY_TASK_ID" in
0) run='/runs of 100%/0' ;;
1) run='/runs of 100%/1' ;;
2) run='/it'"'"'s here/2' ;;
esac
exec >>"$run/detached/job-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.log" 2>&1
exec /opt/python -P -m headway.training.launch.supervise.detached "$run"
