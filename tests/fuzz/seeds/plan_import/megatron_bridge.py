from megatron.bridge.training.comm_overlap import CommOverlapConfig


def apply_plan(cfg):
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True  # with tp
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.ddp.use_distributed_optimizer = True
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 8
    cfg.model.seq_length = 8
    cfg.mixed_precision = "bf16_mixed"
    return cfg
