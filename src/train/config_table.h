/* config_table.h - every key of a run's configuration, once.
 *
 *   X(kind, name, default, (traits), help)
 *
 * The struct tt_config, its defaults, the reading of YAML and of the command line, the resolved configuration,
 * the help text and the refusal of what is not built yet are all made from this list. To add a key: add a line.
 *   kind     the type of the member and what it accepts (config.h lists the kinds)
 *   default  as one would write it on the command line; "null" is unset, and makes null an accepted value
 *   traits   macros of config_keys.c, in any order:
 *     AT_LEAST(x) ABOVE(x) AT_MOST(x) BELOW(x)   bounds of a number
 *     NULLABLE            null is accepted although the default is a value
 *     FALSE_IS_NULL       false is accepted as null
 *     TRUE_IS_TEXT        true is accepted as the text "true"
 *     UNSET_WORD("auto")  a word that means null
 *     ALIAS("name")       another spelling of the key
 *     GATE(feature, asks) refused while TT_FEATURE_<feature> is not built and asks(config, key) is true
 *     DETAIL(feature)     belongs to a feature, asks for nothing alone
 *     NO_EFFECT           accepted: it changes nothing that tartan does
 * A choice that is not built yet is marked where the choices are listed (config.h), not here.
 * Names and defaults are TRL's (SFTConfig, ModelConfig, ScriptArguments); the last group is tartan's own.
 */
#ifndef TT_TRAIN_CONFIG_TABLE_H
#define TT_TRAIN_CONFIG_TABLE_H

#define TT_CONFIG_DATA_KEYS(X)                                                                               \
    X(TEXT, dataset_name, "null", (), "training data: a JSON-lines or JSON file, or a folder of them")       \
    X(TEXT, dataset_config, "null", (GATE(SUBSETS, asks_value)), "named subset of the data set")             \
    X(TEXT, dataset_train_split, "train", (), "split that is trained on, when the data set is a folder")     \
    X(TEXT, dataset_test_split, "test", (DETAIL(EVALUATION)), "split for evaluation")                        \
    X(TEXT, eval_dataset_name, "null", (DETAIL(EVALUATION)), "evaluation data: a file, as dataset_name")     \
    X(BOOL, dataset_streaming, "false", (GATE(STREAMING, asks_true)),                                        \
      "iterate over the data instead of holding it")                                                         \
    X(LIST, datasets, "null", (GATE(MIXTURES, asks_value)),                                                  \
      "parts to mix: mappings with path, split, columns, fraction")                                          \
    X(BOOL, streaming, "false", (GATE(STREAMING, asks_true)), "stream the mixture")                          \
    X(REAL, test_split_size, "null", (ABOVE(0) GATE(MIXTURES, asks_value)),                                  \
      "rows or share of the mixture kept for evaluation")                                                    \
    X(TEXT, dataset_text_field, "text", (), "column that holds plain text")                                  \
    X(MAPPING, dataset_kwargs, "null", (), "only skip_prepare_dataset (true or false) is known")             \
    X(INT, dataset_num_proc, "null", (AT_LEAST(1) NO_EFFECT), "processes that prepare the data")             \
    X(TEXT, chat_template_path, "null", (),                                                                  \
      "chat template: a .jinja file, or a tokenizer folder to take it from")                                 \
    X(TEXT, template_date, "null", (),                                                                       \
      "the date that templates see, so that a run can be repeated; unset = today")                           \
    X(TEXT, eos_token, "null", (), "end-of-sequence token instead of the tokenizer's")                       \
    X(TEXT, pad_token, "null", (), "padding token instead of the tokenizer's (deprecated)")                  \
    X(INT, max_length, "1024", (AT_LEAST(1) NULLABLE),                                                       \
      "rows are cut, or packed, to this many tokens; null = no limit")                                       \
    X(TRUNCATION, truncation_mode, "keep_start", (),                                                         \
      "which end of a long row is kept (keep_end is deprecated)")                                            \
    X(BOOL, shuffle_dataset, "false", (), "permute the prepared rows once, with seed")                       \
    X(BOOL, packing, "false", (GATE(PACKING, asks_true)),                                                    \
      "several documents in one row of max_length tokens")                                                   \
    X(PACKING, packing_strategy, "bfd", (DETAIL(PACKING)), "how documents are put together")                 \
    X(FLAG, eval_packing, "null", (DETAIL(PACKING)), "packing of evaluation data; unset = packing")          \
    X(BOOL, padding_free, "false", (GATE(PADDING_FREE, asks_true)),                                          \
      "batches as one long row; packing with bfd sets it")                                                   \
    X(INT, pad_to_multiple_of, "null", (AT_LEAST(1) UNSET_WORD("auto") NO_EFFECT),                                     \
      "padded length is rounded up to a multiple")                                                           \
    X(FLAG, completion_only_loss, "null", (),                                                                \
      "train the completion alone; unset = yes for prompt and completion rows")                              \
    X(BOOL, assistant_only_loss, "false", (), "train the assistant's turns alone")                           \
    X(BOOL, remove_unused_columns, "true", (NO_EFFECT), "columns that are not used are never read")          \
    X(INT, dataloader_num_workers, "0", (AT_LEAST(0) NO_EFFECT), "processes that load data")                 \
    X(BOOL, dataloader_pin_memory, "true", (NO_EFFECT), "page-locked batches")                               \
    X(BOOL, dataloader_persistent_workers, "false", (NO_EFFECT), "keep loading processes between epochs")    \
    X(INT, dataloader_prefetch_factor, "null", (AT_LEAST(1) NO_EFFECT), "batches loaded ahead")

#define TT_CONFIG_MODEL_KEYS(X)                                                                              \
    X(TEXT, model_name_or_path, "null", (), "folder with config.json, weights and tokenizer")                \
    X(TEXT, model_revision, "main", (NO_EFFECT), "revision of a model that is not a folder")                 \
    X(DTYPE, dtype, "float32", (),                                                                           \
      "type in which the weights are held; see bf16 for the type of the arithmetic")                         \
    X(TEXT, attn_implementation, "null", (NO_EFFECT), "attention kernel of the common library")              \
    X(BOOL, trust_remote_code, "false", (NO_EFFECT), "code from model folders is never run")                 \
    X(MAPPING, model_init_kwargs, "null", (GATE(INIT_ARGUMENTS, asks_value)),                                \
      "arguments of the common library's loader")                                                            \
    X(BOOL, use_cache, "false", (NO_EFFECT), "key/value cache, of no use in training")

#define TT_CONFIG_LORA_KEYS(X)                                                                               \
    X(BOOL, use_peft, "false", (GATE(PEFT, asks_true)), "train LoRA adapters instead of the whole model")    \
    X(INT, lora_r, "16", (AT_LEAST(1) DETAIL(PEFT)), "rank")                                                 \
    X(REAL, lora_alpha, "32", (ABOVE(0) DETAIL(PEFT)), "the adapter is scaled by lora_alpha / lora_r")       \
    X(REAL, lora_dropout, "0.05", (AT_LEAST(0) BELOW(1) DETAIL(PEFT)), "dropout on the adapter's input")     \
    X(NAMES, lora_target_modules, "null", (DETAIL(PEFT)),                                                    \
      "a list of name endings; or one text: all-linear, or a regular expression")                            \
    X(NAMES, lora_target_parameters, "null", (DETAIL(PEFT)), "names of parameter tensors (fused experts)")   \
    X(NAMES, lora_modules_to_save, "null", (DETAIL(PEFT)),                                                   \
      "modules that are trained whole and saved with the adapter")                                           \
    X(TEXT, lora_task_type, "CAUSAL_LM", (DETAIL(PEFT)), "written into the adapter's configuration")         \
    X(BOOL, use_rslora, "false", (DETAIL(PEFT)), "scale by lora_alpha / sqrt(lora_r)")                       \
    X(BOOL, use_dora, "false", (DETAIL(PEFT)), "weight-decomposed adapters")                                 \
    X(BOOL, load_in_8bit, "false", (GATE(QUANTIZATION, asks_true)), "8-bit base weights")                    \
    X(BOOL, load_in_4bit, "false", (GATE(QUANTIZATION, asks_true)), "4-bit base weights")                    \
    X(TEXT, bnb_4bit_quant_type, "nf4", (DETAIL(QUANTIZATION)), "4-bit format")                              \
    X(BOOL, use_bnb_nested_quant, "false", (DETAIL(QUANTIZATION)), "quantised scales")                       \
    X(TEXT, bnb_4bit_quant_storage, "null", (DETAIL(QUANTIZATION)), "type that stores 4-bit weights")

#define TT_CONFIG_TRAINING_KEYS(X)                                                                           \
    X(TEXT, output_dir, "trainer_output", (), "where everything is written")                                 \
    X(BOOL, overwrite_output_dir, "false", (), "replace a model that is already in output_dir")              \
    X(BOOL, do_train, "false", (NO_EFFECT), "sft always trains")                                             \
    X(BOOL, do_eval, "false", (NO_EFFECT), "eval_strategy decides")                                          \
    X(INT, per_device_train_batch_size, "8", (AT_LEAST(1) AT_MOST(1048576)),                                 \
      "rows of a micro-batch on each of fsdp_size ranks")                                                    \
    X(INT, gradient_accumulation_steps, "1", (AT_LEAST(1)), "micro-batches of an optimizer step")            \
    X(REAL, num_train_epochs, "3.0", (ABOVE(0)), "passes over the data; may be a fraction")                  \
    X(INT, max_steps, "-1", (AT_LEAST(-1)), "optimizer steps, instead of num_train_epochs; -1 = not set")    \
    X(LOSS, loss_type, "nll", (), "what is minimised (chunked_nll is a deprecated name of nll)")             \
    X(REAL, router_aux_loss_coef, "null", (AT_LEAST(0)),                                                     \
      "weight of the load-balancing loss; unset = the model's own, 0 = off")                                 \
    X(BALANCE_SCOPE, router_aux_loss_scope, "global", (),                                                    \
      "tokens that it looks at together: all of a micro-step, or each rank's own batch")                     \
    X(REAL, label_smoothing_factor, "0.0", (AT_LEAST(0) AT_MOST(1) GATE(LABEL_SMOOTHING, asks_nonzero)),     \
      "share of every target spread over the vocabulary")                                                    \
    X(REAL, neftune_noise_alpha, "null", (AT_LEAST(0) GATE(NEFTUNE, asks_nonzero)), "noise on embeddings")   \
    X(BOOL, average_tokens_across_devices, "true", (GATE(LOCAL_MEAN, asks_false)),                           \
      "the loss is the mean over all tokens of the step, on all ranks")                                      \
    X(BOOL, gradient_checkpointing, "true", (ALIAS("activation_checkpointing")),                             \
      "keep block inputs alone and compute the rest again, but for the last layer")                                                  \
    X(MAPPING, gradient_checkpointing_kwargs, "null", (ALIAS("activation_checkpointing_kwargs") NO_EFFECT),  \
      "arguments of the common library's recomputation")                                                     \
    X(BOOL, activation_offloading, "false", (GATE(OFFLOADING, asks_true)),                                   \
      "kept activations go to host memory")                                                                  \
    X(FLAG, bf16, "null", (), "matrix products in bfloat16; unset = yes, unless fp16")                       \
    X(BOOL, fp16, "false", (GATE(FP16, asks_true)), "matrix products in float16 with loss scaling")          \
    X(FLAG, tf32, "null", (NO_EFFECT), "TF32 products on GPUs")                                              \
    X(INT, seed, "42", (AT_LEAST(0) AT_MOST(4294967295.0)),                                                  \
      "random numbers of initialisation, dropout, shuffle_dataset")                                          \
    X(INT, data_seed, "null", (AT_LEAST(0)), "order of the rows in each epoch; unset = seed")                \
    X(BOOL, full_determinism, "false", (NO_EFFECT), "runs can always be repeated")                           \
    X(SAMPLING, train_sampling_strategy, "random", (), "order of the rows in an epoch")                      \
    X(TEXT, length_column_name, "length", (DETAIL(SAMPLING)),                                                \
      "column with the rows' lengths, for group_by_length")                                                  \
    X(BOOL, dataloader_drop_last, "false", (), "leave out the last, incomplete round of batches")            \
    X(BOOL, use_liger_kernel, "false", (GATE(LIGER, asks_true)), "kernels of another library")               \
    X(MAPPING, liger_kernel_config, "null", (DETAIL(LIGER)), "its arguments")                                \
    X(BOOL, torch_compile, "false", (GATE(COMPILATION, asks_true)), "compile the model")                     \
    X(TEXT, torch_compile_backend, "null", (GATE(COMPILATION, asks_value)), "compiler")                      \
    X(TEXT, torch_compile_mode, "null", (GATE(COMPILATION, asks_value)), "its mode")                         \
    X(BOOL, auto_find_batch_size, "false", (GATE(BATCH_SEARCH, asks_true)),                                  \
      "try smaller batches when memory is short")                                                            \
    X(INT, torch_empty_cache_steps, "null", (AT_LEAST(1) NO_EFFECT),                                         \
      "return cached memory of GPUs every so many steps")                                                    \
    X(TEXT, resume_from_checkpoint, "null", (FALSE_IS_NULL TRUE_IS_TEXT),                                    \
      "checkpoint folder to go on from; true = the newest whole one in output_dir")                          \
    X(NAMES, resume_override, "null", (),                                                                    \
      "what may differ from the checkpoint's run: dataset, order, seed, data_seed")                          \
    X(BOOL, ignore_data_skip, "false", (GATE(DATA_RESTART, asks_data_restart)),                              \
      "start the epoch's data anew when resuming")

#define TT_CONFIG_OPTIMIZER_KEYS(X)                                                                          \
    X(REAL, learning_rate, "2e-5", (AT_LEAST(0)), "peak learning rate")                                      \
    X(SCHEDULE, lr_scheduler_type, "linear", (), "course of the learning rate")                              \
    X(MAPPING, lr_scheduler_kwargs, "null", (),                                                              \
      "its parameters: num_cycles, min_lr, min_lr_rate, power, ...")                                         \
    X(STEPS, warmup_steps, "0", (AT_LEAST(0)),                                                               \
      "steps in which the rate rises, or a share of all steps below 1")                                      \
    X(OPTIM, optim, "adamw_torch_fused", (), "optimizer (both AdamW names are the same mathematics)")        \
    X(TEXT, optim_args, "null", (GATE(OPTIM_ARGUMENTS, asks_value)), "further arguments of the optimizer")   \
    X(NAMES, optim_target_modules, "null", (GATE(OPTIM_ARGUMENTS, asks_value)),                              \
      "modules that the optimizer treats apart")                                                             \
    X(REAL, weight_decay, "0.0", (AT_LEAST(0)), "decoupled weight decay; norms and biases are spared")       \
    X(REAL, adam_beta1, "0.9", (AT_LEAST(0) BELOW(1)), "decay of the first moment")                          \
    X(REAL, adam_beta2, "0.999", (AT_LEAST(0) BELOW(1)), "decay of the second moment")                       \
    X(REAL, adam_epsilon, "1e-8", (AT_LEAST(0)), "added to the root of the second moment")                   \
    X(REAL, max_grad_norm, "1.0", (NULLABLE),                                                                \
      "gradients are scaled down to this norm; 0, less, or null = no clipping")

#define TT_CONFIG_LOGGING_KEYS(X)                                                                            \
    X(INTERVAL, logging_strategy, "steps", (), "when a record is written")                                   \
    X(STEPS, logging_steps, "10", (ABOVE(0)), "every so many steps, or a share of all steps below 1")        \
    X(BOOL, logging_first_step, "false", (), "also after the first step")                                    \
    X(BOOL, logging_nan_inf_filter, "true", (NO_EFFECT), "leave non-finite losses out of the logged mean")            \
    X(NAMES, report_to, "none", (GATE(REPORTING, asks_reports)),                                             \
      "metric trackers; metrics.jsonl is always written")                                                    \
    X(TEXT, run_name, "null", (DETAIL(REPORTING)), "name of the run in a tracker")                           \
    X(TEXT, project, "huggingface", (DETAIL(REPORTING)), "name of the project in a tracker")                 \
    X(FLAG, disable_tqdm, "null", (), "no progress bar")                                                     \
    X(TEXT, log_level, "passive", (NO_EFFECT), "verbosity of the common library")                            \
    X(TOKENS_SEEN, include_num_input_tokens_seen, "no", (), "count input tokens in the train state")

#define TT_CONFIG_EVALUATION_KEYS(X)                                                                         \
    X(EVALUATION, eval_strategy, "no", (), "when the model is evaluated")                                    \
    X(STEPS, eval_steps, "null", (ABOVE(0) DETAIL(EVALUATION)),                                              \
      "every so many steps, or a share; unset = logging_steps")                                              \
    X(REAL, eval_delay, "0", (AT_LEAST(0) DETAIL(EVALUATION)), "no evaluation before this step or epoch")    \
    X(BOOL, eval_on_start, "false", (GATE(EVALUATION, asks_true)), "also before the first step")             \
    X(INT, per_device_eval_batch_size, "8", (AT_LEAST(1) DETAIL(EVALUATION)),                                \
      "rows of an evaluation batch on each rank")                                                            \
    X(INT, eval_accumulation_steps, "null", (AT_LEAST(1) DETAIL(EVALUATION)), "memory only")                 \
    X(BOOL, prediction_loss_only, "false", (DETAIL(EVALUATION)), "nothing but the loss")                     \
    X(BOOL, bf16_full_eval, "false", (DETAIL(EVALUATION)), "evaluate with bfloat16 weights")                 \
    X(BOOL, load_best_model_at_end, "false", (GATE(EVALUATION, asks_true)),                                  \
      "the final model is the best checkpoint")                                                              \
    X(TEXT, metric_for_best_model, "null", (DETAIL(EVALUATION)), "what best means; unset = loss")            \
    X(FLAG, greater_is_better, "null", (DETAIL(EVALUATION)),                                                 \
      "unset = no, when the metric's name ends in loss")

#define TT_CONFIG_SAVING_KEYS(X)                                                                             \
    X(SAVING, save_strategy, "steps", (), "when a checkpoint is written; at the last step too, unless no")   \
    X(STEPS, save_steps, "500", (ABOVE(0)), "every so many steps, or a share of all steps below 1")          \
    X(INT, save_total_limit, "null", (AT_MOST(2147483647.0)),                                                \
      "checkpoints that are kept; unset, 0 or less = all")                                                   \
    X(BOOL, save_only_model, "false", (), "checkpoints without optimizer state, which cannot be resumed")    \
    X(BOOL, async_save, "false", (),                                                                         \
      "write checkpoints beside training, from a copy of weights and optimizer state")                       \
    X(TEXT, save_dtype, "null", (),                                                                          \
      "type of trained tensors in saved models: float32, bfloat16 or float16; unset = the source's")         \
    X(BOOL, save_on_each_node, "false", (NO_EFFECT), "every rank writes its part of one set of files")       \
    X(BOOL, push_to_hub, "false", (GATE(HUB, asks_true)), "upload the model")                                \
    X(TEXT, hub_model_id, "null", (DETAIL(HUB)), "name of the uploaded model")                               \
    X(TEXT, hub_strategy, "every_save", (DETAIL(HUB)), "what is uploaded when")                              \
    X(FLAG, hub_private_repo, "null", (DETAIL(HUB)), "upload to a private place")

#define TT_CONFIG_MACHINE_KEYS(X)                                                                            \
    X(INT, fsdp_size, "null", (AT_LEAST(1)), "distinct batches in a micro-step; unset = ranks / tp_size")    \
    X(INT, tp_size, "1", (AT_LEAST(1)), "consecutive ranks that share one batch")                            \
    X(INT, ep_size, "1", (AT_LEAST(1)), "consecutive ranks that together hold all experts")                  \
    X(DISPATCH, expert_dispatch, "alltoall", (), "how tokens travel to their experts")                       \
    X(BOOL, even_batches, "false", (),                                                                       \
      "fill an incomplete last round with rows from the start of the epoch, as the common sampler does")     \
    X(INT, threads, "0", (AT_LEAST(0) AT_MOST(4096)),                                                        \
      "threads of a rank; 0 = its share of the machine's cores")                                             \
    X(STATE_DTYPE, optim_state_dtype, "float32", (), "type in which optimizer moments are held")             \
    X(NONFINITE, nonfinite, "stop", (),                                                                      \
      "what a non-finite loss or norm does: stop the run, or skip the update")                               \
    X(BYTES, max_memory, "null", (AT_LEAST(1)),                                                              \
      "what training may take on each host; as many layers keep their activations as fit")                   \
    X(BOOL, profile, "false", (),                                                                            \
      "time by phase: a table at the end, numbers in metrics.jsonl, and trace.json in output_dir")           \
    X(INT, ddp_timeout, "1800", (AT_LEAST(0)), "seconds after which a stalled exchange fails; 0 = never")    \
    X(BOOL, use_cpu, "false", (NO_EFFECT), "the CPU is the only device for now")                             \
    X(MAPPING, accelerator_config, "null", (GATE(ACCELERATOR, asks_value)),                                  \
      "arguments of the common stack; see even_batches")                                                     \
    X(NAMES, fsdp, "null", (FALSE_IS_NULL GATE(OTHER_SHARDING, asks_value)),                                 \
      "sharding of the common stack; see fsdp_size")                                                         \
    X(MAPPING, fsdp_config, "null", (GATE(OTHER_SHARDING, asks_value)), "its arguments")                     \
    X(TEXT, deepspeed, "null", (FALSE_IS_NULL GATE(OTHER_SHARDING, asks_value)),                             \
      "sharding of another stack; see fsdp_size")

/* G(title, keys): the groups, in the order of help and of the resolved configuration. */
#define TT_CONFIG_GROUPS(G)                                                                                  \
    G("Data", TT_CONFIG_DATA_KEYS)                                                                           \
    G("Model", TT_CONFIG_MODEL_KEYS)                                                                         \
    G("LoRA and quantisation", TT_CONFIG_LORA_KEYS)                                                          \
    G("Training", TT_CONFIG_TRAINING_KEYS)                                                                   \
    G("Optimizer", TT_CONFIG_OPTIMIZER_KEYS)                                                                 \
    G("Logging", TT_CONFIG_LOGGING_KEYS)                                                                     \
    G("Evaluation", TT_CONFIG_EVALUATION_KEYS)                                                               \
    G("Saving", TT_CONFIG_SAVING_KEYS)                                                                       \
    G("Mesh and machine", TT_CONFIG_MACHINE_KEYS)

/* X over all keys, in the same order. */
#define TT_CONFIG_KEYS(X)                                                                                    \
    TT_CONFIG_DATA_KEYS(X)                                                                                   \
    TT_CONFIG_MODEL_KEYS(X)                                                                                  \
    TT_CONFIG_LORA_KEYS(X)                                                                                   \
    TT_CONFIG_TRAINING_KEYS(X)                                                                               \
    TT_CONFIG_OPTIMIZER_KEYS(X)                                                                              \
    TT_CONFIG_LOGGING_KEYS(X)                                                                                \
    TT_CONFIG_EVALUATION_KEYS(X)                                                                             \
    TT_CONFIG_SAVING_KEYS(X)                                                                                 \
    TT_CONFIG_MACHINE_KEYS(X)

#endif
