#!/bin/sh
#SBATCH --job-name=kgverify --ntasks=8 --cpus-per-task=1 --mem-per-cpu=2G --time=4:00:00 --requeue
export DASK_CONFIG=$PWD/machines.yaml OMP_NUM_THREADS=1
rm -f scheduler.json
dask scheduler --protocol tls --host "$(hostname -i | cut -d ' ' -f 1)" --port 0 --no-dashboard --dashboard-address 127.0.0.1:0 --scheduler-file scheduler.json &
until [ -s scheduler.json ]; do sleep 1; done
srun --kill-on-bad-exit=0 dask worker --protocol tls --scheduler-file scheduler.json --nworkers 1 --nthreads 1 --no-dashboard --dashboard-address 127.0.0.1:0 &
address=$(python -c "import json; print(json.load(open('scheduler.json'))['address'])")
kgverify evaluate --engine reference --queries 4 --corruptions 5 --check 8 --minimum none --scheduler "$address" --save slurm
status=$?
kill $(jobs -p)
exit $status
