"""What each setting of a recipe is, over all scenarios. `make schemas` generates it from the
`schema.yaml` of every scenario."""

from typing import Any, Generic, Literal, TypeVar

from runner.tools.settings import Settings

Name = TypeVar("Name", bound=str)

class TypedSection(Settings, Generic[Name]):
    """A section with settings of these names alone."""

    def __getitem__(self, key: Name) -> Any: ...  # type: ignore[override]
    def get(self, key: Name, default: Any = None) -> Any: ...  # type: ignore[override]

class Sections:
    scenario: Literal["causal-lm", "full", "image-classification", "last-layers", "lora", "pretrain", "stages"]
    name: str
    description: str | None
    model: Model
    train: Train
    speed: Speed
    data: Data
    resume_from: str | None
    rewards: Rewards | None
    ebft: Ebft | None
    search: Search | None
    gates: tuple[str, ...] | None
    evaluation: Evaluation
    distribution: Literal["auto", "ddp", "zero1", "zero2", "zero3", "fsdp"]
    sharding: Sharding | None
    communication: Communication
    machines: Machines
    nodes: Nodes | None
    limits: Limits
    openshift: Openshift | None
    serve: Serve | None
    image: Image
    demo: Demo
    advanced: Advanced
    tokenizer: Tokenizer
    stages: tuple[Settings, ...]

class Model(TypedSection[Literal["base", "revision", "precision", "attention", "gradient_checkpointing", "sequence_len", "trust_remote_code", "master_weights", "architecture", "width", "image_size", "classes", "hidden_size", "intermediate_size", "layers", "attention_heads", "key_value_heads", "vocabulary", "context", "tied", "seed"]]):
    base: str
    revision: str
    precision: Literal["bf16", "fp16", "fp32", "auto", "fp8"]
    attention: Literal["flash_attention_2", "sdpa", "flex_attention", "eager", "kernels-community/vllm-flash-attn3"]
    gradient_checkpointing: bool
    sequence_len: int
    trust_remote_code: bool
    master_weights: Literal["fp32", "bf16"]
    architecture: Literal["resnet18", "llama"]
    width: int
    image_size: int
    classes: int
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    vocabulary: int
    context: int
    tied: bool
    seed: int

class Train(TypedSection[Literal["objective", "generations", "answer_tokens", "temperature", "generator", "vllm_server", "vllm_memory", "beta", "simpo_margin", "kto_desirable_weight", "kto_undesirable_weight", "epochs", "micro_batch_size", "eval_batch_size", "gradient_accumulation_steps", "effective_batch_size", "learning_rate", "learning_rate_scaling", "lr_scheduler", "warmup_ratio", "warmup_steps", "weight_decay", "neftune_noise", "max_grad_norm", "optimizer", "cross_entropy", "packing", "kernels", "seed", "logging_steps", "eval_steps", "save_steps", "early_stopping", "keep_checkpoints", "report_to", "last_layers", "lm_head", "adapter", "eight_bit_base", "lora_rank", "use_rslora", "lora_alpha", "lora_dropout", "lora_layers", "lora_pattern", "lora_experts", "quantize_experts", "use_dora", "loraplus_lr_ratio", "steps", "curriculum", "min_learning_rate", "adam_beta1", "adam_beta2"]]):
    objective: Literal["dpo", "ipo", "hinge", "orpo", "simpo", "kto", "reward", "grpo", "ebft"]
    generations: int
    answer_tokens: int
    temperature: float
    generator: Literal["transformers", "vllm", "vllm-server"]
    vllm_server: str | None
    vllm_memory: float | None
    beta: float
    simpo_margin: float | None
    kto_desirable_weight: float
    kto_undesirable_weight: float
    epochs: float
    micro_batch_size: int
    eval_batch_size: int | None
    gradient_accumulation_steps: int
    effective_batch_size: int | None
    learning_rate: float
    learning_rate_scaling: Literal["linear", "none"]
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"]
    warmup_ratio: float | None
    warmup_steps: int | None
    weight_decay: float | None
    neftune_noise: float | None
    max_grad_norm: float
    optimizer: Literal["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_fp8", "paged_adamw_32bit", "paged_adamw_8bit", "adamc", "adopt_adamw", "ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "muon", "sinkgd", "adafactor", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit", "sgd"]
    cross_entropy: Literal["auto", "fused", "chunked", "plain"] | None
    packing: Literal["auto", "flatten", "pack", "none"]
    kernels: Literal["auto", "none"]
    seed: int
    logging_steps: int
    eval_steps: int | None
    save_steps: int | None
    early_stopping: TrainEarlyStopping | None
    keep_checkpoints: int
    report_to: Literal["tensorboard", "wandb", "mlflow", "none"]
    last_layers: int
    lm_head: bool
    adapter: Literal["lora", "qlora"]
    eight_bit_base: bool | None
    lora_rank: int
    use_rslora: bool | None
    lora_alpha: int
    lora_dropout: float
    lora_layers: tuple[str, ...] | None
    lora_pattern: str | None
    lora_experts: bool | None
    quantize_experts: bool | None
    use_dora: bool | None
    loraplus_lr_ratio: float | None
    steps: int
    curriculum: tuple[TrainCurriculum, ...]
    min_learning_rate: float
    adam_beta1: float
    adam_beta2: float

class TrainEarlyStopping(TypedSection[Literal["patience", "min_improvement"]]):
    patience: int
    min_improvement: float

class Speed(TypedSection[Literal["compile", "fp8", "tf32", "data_workers", "persistent_workers", "fused_kernels", "fused_cross_entropy"]]):
    compile: Literal["auto", "default", "max-autotune", "off"] | None
    fp8: bool | None
    tf32: bool | None
    data_workers: int | None
    persistent_workers: bool | None
    fused_kernels: bool
    fused_cross_entropy: bool

class Data(TypedSection[Literal["hub", "revision", "subset", "files", "split", "sheet", "validation_split", "path", "validation_path", "sample", "sets", "form", "text", "question", "answer", "prompt", "chosen", "rejected", "completion", "label", "answered_by", "songs", "system_prompt", "drop_system", "strip_html", "thinking_field", "train_on", "chat_template", "validation_share", "max_lost_share", "seed", "test_split", "image_column", "label_column", "random_crop_padding", "random_flip", "mean", "std", "packed", "column", "limit", "language", "min_words", "max_words", "drop_repetitive", "drop_low_quality", "deduplicate", "cleaning"]]):
    hub: str | None
    revision: str | None
    subset: str | None
    files: tuple[str, ...] | None
    split: str | None
    sheet: str | None
    validation_split: str | None
    path: str | None
    validation_path: str | None
    sample: str | None
    sets: tuple[DataSets, ...] | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion", "chatgpt", "claude", "chat_log", "text", "preferences", "prompts"]
    text: str
    question: str | None
    answer: str | None
    prompt: str
    chosen: str
    rejected: str
    completion: str
    label: str
    answered_by: str | None
    songs: DataSongs | None
    system_prompt: str | None
    drop_system: bool | None
    strip_html: bool | None
    thinking_field: Literal["reasoning_content", "thinking"] | None
    train_on: Literal["assistant", "last", "all"]
    chat_template: Literal["auto", "chatml", "tokenizer_default", "mistral_common"]
    validation_share: float
    max_lost_share: float
    seed: int
    test_split: str | None
    image_column: str
    label_column: str
    random_crop_padding: int
    random_flip: bool
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    packed: str | None
    column: str
    limit: int | None
    language: str
    min_words: int
    max_words: int
    drop_repetitive: bool
    drop_low_quality: bool
    deduplicate: Literal["near", "exact", "off"]
    cleaning: DataCleaning

class DataSets(TypedSection[Literal["hub", "revision", "subset", "files", "split", "sheet", "path", "share", "sample", "form", "question", "answer", "answered_by", "prompt", "chosen", "rejected", "completion", "label", "text", "column", "limit"]]):
    hub: str | None
    revision: str | None
    subset: str | None
    files: tuple[str, ...] | None
    split: str | None
    sheet: str | None
    path: str | None
    share: float
    sample: str | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion", "chatgpt", "claude", "chat_log"] | None
    question: str | None
    answer: str | None
    answered_by: str | None
    prompt: str | None
    chosen: str | None
    rejected: str | None
    completion: str | None
    label: str | None
    text: str | None
    column: str | None
    limit: int | None

class DataSongs(TypedSection[Literal["instruction", "lyrics", "instruction_form", "count", "per_artist", "min_words", "max_words", "tasks"]]):
    instruction: str
    lyrics: str
    instruction_form: str
    count: int
    per_artist: int
    min_words: int
    max_words: int
    tasks: DataSongsTasks

class DataSongsTasks(TypedSection[Literal["write_verse", "recognise_style", "classify_genre"]]):
    write_verse: float
    recognise_style: float
    classify_genre: float

class Rewards(TypedSection[Literal["exact", "number", "pattern", "length", "overlap", "python"]]):
    exact: RewardsExact | None
    number: RewardsNumber | None
    pattern: RewardsPattern | None
    length: RewardsLength | None
    overlap: RewardsOverlap | None
    python: RewardsPython | None

class RewardsExact(TypedSection[Literal["weight", "within"]]):
    weight: float
    within: str | None

class RewardsNumber(TypedSection[Literal["weight", "within", "tolerance"]]):
    weight: float
    within: str | None
    tolerance: float

class RewardsPattern(TypedSection[Literal["weight", "matches"]]):
    weight: float
    matches: str

class RewardsLength(TypedSection[Literal["weight", "words"]]):
    weight: float
    words: int

class RewardsOverlap(TypedSection[Literal["weight", "of"]]):
    weight: float
    of: Literal["reference", "question"]

class RewardsPython(TypedSection[Literal["weight", "path", "function", "sha256"]]):
    weight: float
    path: str
    function: str
    sha256: str

class Ebft(TypedSection[Literal["feature_layers", "embed_method", "use_whitening", "alignment_coef", "diversity_coef"]]):
    feature_layers: tuple[float, ...]
    embed_method: Literal["last_token", "mean_pooling", "completion_mean", "concat"]
    use_whitening: bool
    alignment_coef: float
    diversity_coef: float

class Search(TypedSection[Literal["over", "between", "trials", "seed", "gpu_hours", "stop_poor"]]):
    over: Settings
    between: Settings
    trials: int | None
    seed: int
    gpu_hours: float | None
    stop_poor: bool

class Evaluation(TypedSection[Literal["tasks", "sample_task", "limit", "batch_size", "prompt"]]):
    tasks: tuple[str, ...] | None
    sample_task: str | None
    limit: int | None
    batch_size: int
    prompt: str

class Sharding(TypedSection[Literal["context_parallel_size", "tensor_parallel_size", "offload_optimizer", "offload_weights", "nvme_path", "nvme_mb_s", "file"]]):
    context_parallel_size: int | None
    tensor_parallel_size: int | None
    offload_optimizer: Literal["none", "cpu", "nvme"]
    offload_weights: Literal["none", "cpu", "nvme"]
    nvme_path: str | None
    nvme_mb_s: float
    file: str | None

class Communication(TypedSection[Literal["nccl_debug", "ddp_bucket_mb", "ddp_find_unused_parameters"]]):
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"]
    ddp_bucket_mb: int | None
    ddp_find_unused_parameters: bool

class Machines(TypedSection[Literal["nodes", "gpus_per_node", "gpu", "memory", "cpus"]]):
    nodes: int
    gpus_per_node: int
    gpu: str
    memory: str
    cpus: int

class Nodes(TypedSection[Literal["output_dir", "port", "wait_minutes", "python", "network", "machines"]]):
    output_dir: str
    port: int
    wait_minutes: float
    python: str
    network: NodesNetwork | None
    machines: tuple[NodesMachines, ...]

class NodesNetwork(TypedSection[Literal["gbit_s", "links"]]):
    gbit_s: float
    links: int | None

class NodesMachines(TypedSection[Literal["address", "gpus"]]):
    address: str
    gpus: tuple[int, ...]

class Limits(TypedSection[Literal["time", "gpu_memory", "gpu_memory_parts", "cost", "price_per_gpu_hour", "samples_per_second"]]):
    time: str | None
    gpu_memory: str | None
    gpu_memory_parts: LimitsGpuMemoryParts
    cost: float | None
    price_per_gpu_hour: float | None
    samples_per_second: float | None

class LimitsGpuMemoryParts(TypedSection[Literal["weights", "gradients", "optimizer", "activations", "temporary", "reserve", "adapter"]]):
    weights: str | None
    gradients: str | None
    optimizer: str | None
    activations: str | None
    temporary: str | None
    reserve: str | None
    adapter: str | None

class Openshift(TypedSection[Literal["namespace", "version", "service_account", "hub_token_secret", "tracking_secret", "connection", "mirror", "network", "metrics_port", "progress_port", "progress_seconds", "job_name", "image", "data_from", "data_dir", "output_dir", "claims", "requests", "limits", "queue", "topology", "kueue", "hardware_profile", "connections", "tolerations", "node_selector", "environment", "restart_policy", "clean_pod_policy", "backoff_limit", "deadline_hours"]]):
    namespace: str
    version: str
    service_account: str | None
    hub_token_secret: str | None
    tracking_secret: str | None
    connection: str | None
    mirror: str | None
    network: OpenshiftNetwork
    metrics_port: int
    progress_port: int
    progress_seconds: int
    job_name: str | None
    image: str | None
    data_from: Literal["claim", "image", "git"]
    data_dir: str | None
    output_dir: str | None
    claims: tuple[OpenshiftClaims, ...]
    requests: OpenshiftRequests
    limits: OpenshiftLimits
    queue: str | None
    topology: str | None
    kueue: str | None
    hardware_profile: OpenshiftHardwareProfile | None
    connections: tuple[str, ...] | None
    tolerations: tuple[OpenshiftTolerations, ...] | None
    node_selector: Settings | None
    environment: Settings | None
    restart_policy: Literal["OnFailure", "Never", "ExitCode"]
    clean_pod_policy: Literal["None", "Running", "All"]
    backoff_limit: int
    deadline_hours: float

class OpenshiftNetwork(TypedSection[Literal["kind", "interface", "attachment", "rdma_resource", "rdma_devices", "gbit_s", "links"]]):
    kind: Literal["ethernet", "rdma"]
    interface: str
    attachment: str | None
    rdma_resource: str
    rdma_devices: str
    gbit_s: float | None
    links: int | None

class OpenshiftClaims(TypedSection[Literal["name", "mount", "size_gib", "storage_class", "write_mb_s"]]):
    name: str
    mount: str
    size_gib: int | None
    storage_class: str | None
    write_mb_s: float

class OpenshiftRequests(TypedSection[Literal["memory", "cpus"]]):
    memory: str | None
    cpus: int | None

class OpenshiftLimits(TypedSection[Literal["memory", "cpus"]]):
    memory: str | None
    cpus: int | None

class OpenshiftHardwareProfile(TypedSection[Literal["name", "namespace"]]):
    name: str
    namespace: str

class OpenshiftTolerations(TypedSection[Literal["key", "value", "effect"]]):
    key: str
    value: str | None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None

class Serve(TypedSection[Literal["context", "concurrency", "gpus", "model", "recipes", "kind", "runtime", "image", "route"]]):
    context: int | None
    concurrency: int
    gpus: int | None
    model: str | None
    recipes: tuple[str, ...] | None
    kind: Literal["InferenceService", "LLMInferenceService"] | None
    runtime: str
    image: str | None
    route: bool

class Image(TypedSection[Literal["code_from_git"]]):
    code_from_git: ImageCodeFromGit | None

class ImageCodeFromGit(TypedSection[Literal["url", "commit"]]):
    url: str
    commit: str

class Demo(TypedSection[Literal["questions", "categories", "max_new_tokens", "graded_questions"]]):
    questions: tuple[str, ...] | None
    categories: tuple[DemoCategories, ...] | None
    max_new_tokens: int
    graded_questions: int

class DemoCategories(TypedSection[Literal["name", "questions"]]):
    name: str
    questions: tuple[str, ...]

class Advanced(TypedSection[Literal["axolotl"]]):
    axolotl: Settings

class Tokenizer(TypedSection[Literal["base", "revision", "vocabulary", "chat_template"]]):
    base: str | None
    revision: str
    vocabulary: int
    chat_template: Literal["chatml"]

class DataCleaning(TypedSection[Literal["executor", "pods", "tasks", "workers", "partition", "time", "cpus_per_task", "mem_per_cpu_gb", "qos", "sbatch_args", "address"]]):
    executor: Literal["local", "pods", "slurm", "ray"]
    pods: int | None
    tasks: int | None
    workers: int
    partition: str | None
    time: str | None
    cpus_per_task: int
    mem_per_cpu_gb: int
    qos: str | None
    sbatch_args: Settings
    address: str | None

class TrainCurriculum(TypedSection[Literal["sequence_len", "until"]]):
    sequence_len: int
    until: float
