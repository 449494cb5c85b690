"""Training: one loop, two engines (in this process, or DeepSpeed inside Ray Train), data sources, optimiser, schedule.

Nothing is imported here: the parts are `loop`, `engine`, `deepspeed_engine`, `ray_workers`, `data`, `optimiser`,
`schedule`, `checkpoints` and `record`.
"""
