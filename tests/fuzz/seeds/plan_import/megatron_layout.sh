export CUDA_DEVICE_MAX_CONNECTIONS=1
LAUNCH_ARGS=(
  --nproc-per-node 4
  --nnodes 1
)
PLAN_ARGS=(
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout "Et*3|(t*2|)*2tL"
  --micro-batch-size 1
  --global-batch-size 8
  --bf16
)
