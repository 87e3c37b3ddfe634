"""What each setting of a recipe is, over all scenarios. `make schemas` generates it from the
`schema.yaml` of every scenario."""

from typing import Literal

from runner.recipe.recipe import Settings

class Sections:
    scenario: Literal["causal-lm", "full", "image-classification", "last-layers", "lora", "pipeline", "stages"]
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
    distribution: Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "auto"]
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
    pretrain: Pretrain
    sft: Sft | None
    dpo: Dpo | None
    lora: Lora | None
    report_to: Literal["tensorboard", "wandb", "mlflow", "none"]
    stages: tuple[Settings, ...]

class Model(Settings):
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

class Train(Settings):
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

class TrainEarlyStopping(Settings):
    patience: int
    min_improvement: float

class Speed(Settings):
    compile: Literal["default", "max-autotune", "off", "auto"] | None
    fp8: bool | None
    tf32: bool | None
    data_workers: int | None
    persistent_workers: bool | None
    fused_kernels: bool
    fused_cross_entropy: bool

class Data(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    files: tuple[str, ...] | None
    split: str | None
    validation_split: str | None
    path: str | None
    validation_path: str | None
    sample: str | None
    sets: tuple[DataSets, ...] | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "preferences", "prompts"]
    text: str
    question: str | None
    answer: str | None
    prompt: str
    chosen: str
    rejected: str
    completion: str
    label: str
    songs: DataSongs | None
    system_prompt: str | None
    drop_system: bool | None
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

class DataSets(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    files: tuple[str, ...] | None
    split: str | None
    path: str | None
    share: float
    sample: str | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion"] | None
    question: str | None
    answer: str | None
    prompt: str | None
    chosen: str | None
    rejected: str | None
    completion: str | None
    label: str | None
    text: str | None
    column: str | None
    limit: int | None

class DataSongs(Settings):
    instruction: str
    lyrics: str
    instruction_form: str
    count: int
    per_artist: int
    min_words: int
    max_words: int
    tasks: DataSongsTasks

class DataSongsTasks(Settings):
    write_verse: float
    recognise_style: float
    classify_genre: float

class Rewards(Settings):
    exact: RewardsExact | None
    number: RewardsNumber | None
    pattern: RewardsPattern | None
    length: RewardsLength | None
    overlap: RewardsOverlap | None
    python: RewardsPython | None

class RewardsExact(Settings):
    weight: float
    within: str | None

class RewardsNumber(Settings):
    weight: float
    within: str | None
    tolerance: float

class RewardsPattern(Settings):
    weight: float
    matches: str

class RewardsLength(Settings):
    weight: float
    words: int

class RewardsOverlap(Settings):
    weight: float
    of: Literal["reference", "question"]

class RewardsPython(Settings):
    weight: float
    path: str
    function: str
    sha256: str

class Ebft(Settings):
    feature_layers: tuple[float, ...]
    embed_method: Literal["last_token", "mean_pooling", "completion_mean", "concat"]
    use_whitening: bool
    alignment_coef: float
    diversity_coef: float

class Search(Settings):
    over: Settings
    between: Settings
    trials: int | None
    seed: int
    gpu_hours: float | None
    stop_poor: bool

class Evaluation(Settings):
    tasks: tuple[str, ...] | None
    sample_task: str | None
    limit: int | None
    batch_size: int
    prompt: str

class Sharding(Settings):
    context_parallel_size: int | None
    tensor_parallel_size: int | None
    offload_optimizer: Literal["none", "cpu", "nvme"]
    offload_weights: Literal["none", "cpu", "nvme"]
    nvme_path: str | None
    nvme_mb_s: float
    file: str | None

class Communication(Settings):
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"]
    ddp_bucket_mb: int | None
    ddp_find_unused_parameters: bool

class Machines(Settings):
    nodes: int
    gpus_per_node: int
    gpu: str
    memory: str
    cpus: int

class Nodes(Settings):
    output_dir: str
    port: int
    wait_minutes: float
    python: str
    network: NodesNetwork | None
    machines: tuple[NodesMachines, ...]

class NodesNetwork(Settings):
    gbit_s: float
    links: int | None

class NodesMachines(Settings):
    address: str
    gpus: tuple[int, ...]

class Limits(Settings):
    time: str | None
    gpu_memory: str | None
    gpu_memory_parts: LimitsGpuMemoryParts
    cost: float | None
    price_per_gpu_hour: float | None
    samples_per_second: float | None

class LimitsGpuMemoryParts(Settings):
    weights: str | None
    gradients: str | None
    optimizer: str | None
    activations: str | None
    temporary: str | None
    reserve: str | None
    adapter: str | None

class Openshift(Settings):
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

class OpenshiftNetwork(Settings):
    kind: Literal["ethernet", "rdma"]
    interface: str
    attachment: str | None
    rdma_resource: str
    rdma_devices: str
    gbit_s: float | None
    links: int | None

class OpenshiftClaims(Settings):
    name: str
    mount: str
    size_gib: int | None
    storage_class: str | None
    write_mb_s: float

class OpenshiftRequests(Settings):
    memory: str | None
    cpus: int | None

class OpenshiftLimits(Settings):
    memory: str | None
    cpus: int | None

class OpenshiftHardwareProfile(Settings):
    name: str
    namespace: str

class OpenshiftTolerations(Settings):
    key: str
    value: str | None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None

class Serve(Settings):
    context: int | None
    concurrency: int
    gpus: int | None
    model: str | None
    recipes: tuple[str, ...] | None
    kind: Literal["InferenceService", "LLMInferenceService"] | None
    runtime: str
    image: str | None
    route: bool

class Image(Settings):
    code_from_git: ImageCodeFromGit | None

class ImageCodeFromGit(Settings):
    url: str
    commit: str

class Demo(Settings):
    questions: tuple[str, ...] | None
    categories: tuple[DemoCategories, ...] | None
    max_new_tokens: int
    graded_questions: int

class DemoCategories(Settings):
    name: str
    questions: tuple[str, ...]

class Advanced(Settings):
    axolotl: Settings
    pretrain: Settings
    sft: Settings
    dpo: Settings
    lora: Settings

class Tokenizer(Settings):
    base: str | None
    revision: str
    vocabulary: int
    chat_template: Literal["chatml"]

class DataCleaning(Settings):
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

class Pretrain(Settings):
    steps: int
    curriculum: tuple[PretrainCurriculum, ...]
    learning_rate: float
    min_learning_rate: float
    warmup_ratio: float | None
    warmup_steps: int | None
    micro_batch_size: int
    gradient_accumulation_steps: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    max_grad_norm: float
    precision: Literal["auto", "fp8", "bf16", "fp32"] | None
    optimizer: Literal["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_fp8", "paged_adamw_32bit", "paged_adamw_8bit", "adamc", "adopt_adamw", "ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "muon", "sinkgd", "adafactor", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit", "sgd"]
    eval_steps: int
    save_steps: int | None
    keep_checkpoints: int
    logging_steps: int
    seed: int
    gates: tuple[str, ...]

class PretrainCurriculum(Settings):
    sequence_len: int
    until: float

class Sft(Settings):
    data: SftData
    packing: Literal["auto", "flatten", "pack", "none"]
    sequence_len: int
    epochs: float
    learning_rate: float
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"]
    warmup_ratio: float
    micro_batch_size: int
    gradient_accumulation_steps: int
    weight_decay: float
    max_grad_norm: float
    precision: Literal["auto", "fp8", "bf16", "fp32"] | None
    optimizer: Literal["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_fp8", "paged_adamw_32bit", "paged_adamw_8bit", "adamc", "adopt_adamw", "ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "muon", "sinkgd", "adafactor", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit", "sgd"]
    eval_steps: int | None
    save_steps: int | None
    early_stopping: SftEarlyStopping | None
    keep_checkpoints: int
    logging_steps: int
    seed: int
    gates: tuple[str, ...]

class SftData(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    sample: str | None
    sets: tuple[SftDataSets, ...] | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion"]
    question: str | None
    answer: str | None
    system_prompt: str | None
    train_on: Literal["assistant", "last", "all"]
    validation_share: float
    max_lost_share: float
    seed: int

class SftDataSets(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    share: float
    sample: str | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion"] | None
    question: str | None
    answer: str | None

class SftEarlyStopping(Settings):
    patience: int
    min_improvement: float

class Dpo(Settings):
    data: DpoData
    loss: Literal["sigmoid", "hinge", "ipo"]
    beta: float
    sequence_len: int
    epochs: float
    learning_rate: float
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"]
    warmup_ratio: float
    micro_batch_size: int
    gradient_accumulation_steps: int
    max_grad_norm: float
    precision: Literal["auto", "bf16", "fp32"] | None
    optimizer: Literal["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_fp8", "paged_adamw_32bit", "paged_adamw_8bit", "adamc", "adopt_adamw", "ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "muon", "sinkgd", "adafactor", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit", "sgd"]
    eval_steps: int
    save_steps: int | None
    keep_checkpoints: int
    logging_steps: int
    seed: int
    gates: tuple[str, ...]

class DpoData(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    sample: str | None
    sets: tuple[DpoDataSets, ...] | None
    prompt: str
    chosen: str
    rejected: str
    system_prompt: str | None
    validation_share: float
    max_lost_share: float
    seed: int

class DpoDataSets(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    share: float
    sample: str | None
    prompt: str | None
    chosen: str | None
    rejected: str | None

class Lora(Settings):
    data: LoraData
    domain_share: float
    rank: int
    alpha: int
    dropout: float
    packing: Literal["auto", "flatten", "pack", "none"]
    sequence_len: int
    epochs: float
    learning_rate: float
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"]
    warmup_ratio: float
    micro_batch_size: int
    gradient_accumulation_steps: int
    weight_decay: float
    max_grad_norm: float
    precision: Literal["auto", "bf16", "fp32"] | None
    optimizer: Literal["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_fp8", "paged_adamw_32bit", "paged_adamw_8bit", "adamc", "adopt_adamw", "ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "muon", "sinkgd", "adafactor", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit", "sgd"]
    eval_steps: int | None
    save_steps: int | None
    early_stopping: LoraEarlyStopping | None
    keep_checkpoints: int
    logging_steps: int
    seed: int
    gates: tuple[str, ...] | None

class LoraData(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    sample: str | None
    sets: tuple[LoraDataSets, ...] | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion"]
    question: str | None
    answer: str | None
    system_prompt: str | None
    train_on: Literal["assistant", "last", "all"]
    validation_share: float
    max_lost_share: float
    seed: int

class LoraDataSets(Settings):
    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    share: float
    sample: str | None
    form: Literal["auto", "columns", "messages", "sharegpt", "alpaca", "prompt_completion"] | None
    question: str | None
    answer: str | None

class LoraEarlyStopping(Settings):
    patience: int
    min_improvement: float
