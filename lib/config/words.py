"""What other libraries call things that have another name here: for advice on unknown keys, and a table in docs/own.md.

The names are those of Hugging Face's TrainingArguments, of Lightning's Trainer, and of usual PyTorch scripts.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """One thing: what it is called elsewhere, its keys here (none where nothing is to be set), and how it is given."""

    elsewhere: tuple[str, ...]
    keys: tuple[str, ...]
    how: str


def _word(elsewhere: str, keys: str, how: str) -> Word:
    return Word(tuple(elsewhere.split()), tuple(keys.split()), how)


WORDS = (
    _word(
        "batch_size train_batch_size per_device_train_batch_size global_batch_size",
        "training.effective_batch",
        "The samples of an optimizer step, over all cards and accumulation; what a card takes at once is planned.",
    ),
    _word(
        "gradient_accumulation_steps accumulate_grad_batches accumulation_steps grad_accum",
        "training.effective_batch",
        "A step is given by its samples, and split as memory asks; training.micro_batch sets the pieces yourself.",
    ),
    _word(
        "num_train_epochs max_epochs num_epochs n_epochs",
        "training.epochs",
        "Passes over the training samples; they become steps when the data is read.",
    ),
    _word(
        "max_train_steps num_training_steps total_steps num_steps iterations max_iters",
        "training.max_steps",
        "Optimizer steps, not micro-batches.",
    ),
    _word(
        "fp16 use_fp16 half amp use_amp mixed_precision",
        "training.precision",
        "Write fp16, or leave auto, which takes what the card is fast in; losses are scaled by themselves.",
    ),
    _word("bf16 use_bf16", "training.precision", "Write bf16, or leave auto: a T4 has no bf16."),
    _word(
        "learning_rate base_lr max_lr",
        "optimizer.lr",
        "The highest rate, after the warm-up. It belongs to the effective batch and is not multiplied by cards.",
    ),
    _word("optim optimizer_name", "optimizer.name", "The optimizer's settings stand beside it."),
    _word("adam_beta1 adam_beta2", "optimizer.betas", "Both in one list: [0.9, 0.999]."),
    _word("adam_epsilon", "optimizer.eps", "What is added to the denominator of an update."),
    _word("sgd_momentum", "optimizer.momentum", "Of sgd; adamw has optimizer.betas."),
    _word("wd", "optimizer.weight_decay", "Decoupled; norms and biases have none."),
    _word("lr_scheduler_type lr_scheduler lr_schedule", "scheduler.name", "Every schedule begins with its warm-up."),
    _word(
        "warmup_ratio num_warmup_steps warmup lr_warmup_steps",
        "scheduler.warmup_steps scheduler.warmup_epochs",
        "In steps or in epochs; a ratio of 0.1 is a tenth of training.max_steps.",
    ),
    _word(
        "max_grad_norm gradient_clip_val clip_grad_norm grad_clip gradient_clipping",
        "training.clip_norm",
        "The norm over all parameters; 0 does not clip.",
    ),
    _word(
        "save_steps save_strategy every_n_train_steps checkpoint_steps save_every save_interval",
        "checkpoint.every_steps checkpoint.every_minutes",
        "Every five minutes without a key; the end of a session is saved in any case.",
    ),
    _word("save_total_limit save_top_k", "checkpoint.keep_last checkpoint.keep_best", "The newest, and the best."),
    _word(
        "eval_steps eval_strategy evaluation_strategy val_check_interval eval_every eval_interval",
        "training.evaluate_every_steps",
        "Without it the only validation is the one at the end.",
    ),
    _word(
        "per_device_eval_batch_size eval_batch_size val_batch_size test_batch_size",
        "data.evaluation_batch",
        "Without it a validation takes as many samples at once as training.",
    ),
    _word(
        "report_to logger loggers",
        "tracking.tensorboard tracking.wandb",
        "A switch for each; they write into the run's folder unless tracking.online is set.",
    ),
    _word(
        "early_stopping early_stopping_patience early_stop",
        "training.stop_after_evaluations",
        "Validations without a better value; the run is then completed, and its best weights are tested.",
    ),
    _word("check_val_every_n_epoch", "training.evaluate_every_epochs", "Epochs between validations."),
    _word("logging_steps log_every_n_steps log_interval log_every", "training.log_every_steps", "Rows of metrics.csv."),
    _word(
        "DataParallel DistributedDataParallel ddp dp data_parallel strategy distributed multi_gpu local_rank",
        "",
        "There is nothing to set: each GPU gets a process of its own, and the samples of a step stay the same.",
    ),
    _word(
        "devices gpus num_gpus n_gpu cuda_visible_devices gpu num_processes nproc_per_node",
        "device.gpu_ids device.processes",
        "Every GPU is used without a key; these name some of them, and the number of processes.",
    ),
    _word("accelerator", "", "There is nothing to set: a GPU is used where there is one."),
    _word("num_nodes nnodes", "", "Start the same command with torchrun on each machine (docs/cluster.md)."),
    _word("fsdp deepspeed zero zero_stage sharding", "training.fully_shard", "FSDP2, for what fits no card."),
    _word(
        "activation_checkpointing use_checkpoint grad_checkpoint recompute",
        "training.gradient_checkpointing",
        "The number of layers that are recomputed, or all; it is planned where memory asks for it.",
    ),
    _word("torch_compile compile_model", "training.compile", "Kernels for the model, which take minutes to make."),
    _word("benchmark", "training.cudnn_benchmark", "Whether convolutions try all algorithms first."),
    _word("use_deterministic_algorithms full_determinism", "training.deterministic", "The same bits on a GPU."),
    _word("use_ema ema model_ema ema_rate", "training.ema_decay", "A decay such as 0.999 switches the average on."),
    _word("random_seed random_state seed_everything data_seed manual_seed", "seed", "One for everything random."),
    _word(
        "resume resume_from_checkpoint ckpt_path resume_from_ckpt load_checkpoint",
        "run.resume_from",
        "A run resumes by itself where its name is found; this names another place to look in.",
    ),
    _word(
        "model_name_or_path pretrained_model_name_or_path pretrained pretrained_path checkpoint_path init_from",
        "run.initial_weights",
        "Weights that the tensors of your model() with the same names and shapes start from.",
    ),
    _word(
        "metric_for_best_model greater_is_better monitor load_best_model_at_end",
        "",
        "The task's selection names the metric and its direction; the best weights are kept, and tested at the end.",
    ),
    _word(
        "dataloader_num_workers workers n_workers num_loader_workers", "data.num_workers", "Processes for each rank."
    ),
    _word("dataloader_pin_memory", "data.pin_memory", "Page-locked memory."),
    _word("dataloader_prefetch_factor", "data.prefetch_factor", "Slots that are prepared ahead."),
    _word(
        "data_dir data_path data_root dataset dataset_name dataset_path train_file train_dir root_dir",
        "data.dir",
        "A folder, or a mounted input by its name; validation and test are parts that the task makes of it.",
    ),
    _word("group_by_length bucket_by_length", "data.buckets", "Batches of a pool that is sorted by length."),
    _word(
        "shuffle drop_last dataloader_drop_last sampler",
        "",
        "There is nothing to set: each epoch is another permutation, and goes on into the next: no batch is short.",
    ),
    _word("limit_train_batches max_train_samples fast_dev_run", "data.subset_ratio", "A share of the samples."),
    _word(
        "default_root_dir save_dir logging_dir log_dir out_dir",
        "output_dir",
        "One folder for all runs; each writes checkpoints, metrics, plots and its archive into a folder of its own.",
    ),
    _word("run_name experiment_name exp_name", "run.name", "Without a key the name of the configuration."),
    _word("max_time time_limit max_hours", "session.minutes", "Of a session; a platform's limit is known."),
    _word(
        "model model_name model_type backbone architecture arch net num_labels num_classes",
        "task workload",
        "The model is what model() of the task's class returns; its sizes are fields of the task's Settings.",
    ),
    _word(
        "loss loss_fn criterion metrics compute_metrics collate_fn transforms augmentation trainer",
        "task",
        "Loss, metrics, batches and what is random in them are methods of the task's class.",
    ),
)

_PRECISIONS = {
    "fp16": "16 16-mixed 16-true float16 half amp fp16-mixed torch.float16",
    "bf16": "bf16-mixed bf16-true bfloat16 torch.bfloat16",
    "fp32": "32 32-true float32 float full single no torch.float32",
}
_OPTIMIZERS = {
    "adamw": "AdamW torch.optim.AdamW adamw_torch adamw_torch_fused adamw_hf",
    "sgd": "SGD torch.optim.SGD momentum",
    "adafactor": "Adafactor torch.optim.Adafactor",
}
_SCHEDULES = {
    "plateau": "ReduceLROnPlateau reduce_lr_on_plateau",
    "cosine": "CosineAnnealingLR cosine_annealing cosine_with_warmup",
    "linear": "LinearLR linear_with_warmup get_linear_schedule_with_warmup",
    "one_cycle": "OneCycleLR onecycle 1cycle",
    "constant": "ConstantLR constant_with_warmup none",
}


def _turned(names: dict[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, listed in names.items() for theirs in listed.split()}


# By dotted key: what is written elsewhere -> what is written here, where the key takes that.
VALUES = {
    "training.precision": _turned(_PRECISIONS),
    "training.gradient_checkpointing": _turned({"all": "true True", "0": "false False"}),
    "optimizer.name": _turned(_OPTIMIZERS),
    "scheduler.name": _turned(_SCHEDULES),
}


def _plain(name: str) -> str:
    """Returns the last part of a name without what is only spelling: numTrainEpochs, num-train-epochs."""
    return "".join(letter for letter in name.rpartition(".")[2].lower() if letter.isalnum())


_BY_NAME = {_plain(name): word for word in WORDS for name in word.elsewhere}


def about(name: str) -> str:
    """Returns a sentence on what a key from elsewhere is called here; empty for a word that is not known."""
    word = _BY_NAME.get(_plain(name))
    if not word:
        return ""
    return f"It is {f'called {_and(word.keys)}' if word.keys else 'no key'} here. {word.how}"


def _and(keys: tuple[str, ...]) -> str:
    return " and ".join(keys)
