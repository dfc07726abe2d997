#!/bin/bash
TP=${TP:-2}   # variables
ARGS=(
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size=2 \
  --micro-batch-size 2 --global-batch-size "16" --bf16 --num-layers-per-virtual-pipeline-stage 2
)
torchrun --nproc_per_node $(nproc) pretrain_gpt.py ${ARGS[@]} --use-distributed-optimizer --recompute-granularity full
