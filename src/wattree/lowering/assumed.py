"""What a job leaves to its software, in sentences that say what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.cost import Software
from wattree.cost.convolution_rates import convolution_precision
from wattree.cost.families import BEFORE, ENGINES
from wattree.cost.precisions import WIDE
from wattree.cost.rates import Rates
from wattree.cost.releases import earlier_traits
from wattree.errors import JobError
from wattree.graph import ModelGraph, OperatorKind
from wattree.hardware import Precision
from wattree.job import AUTO, Job, WorkloadKind
from wattree.job.engines import FSDP, engine_of
from wattree.job.optimizers import MATRIX_OPTIMIZERS
from wattree.job.usual import in_words
from wattree.lowering.idle import has_experts
from wattree.lowering.model import family_of, runs_all_experts
from wattree.lowering.operator_costs import converts_layout
from wattree.lowering.software import beside_base, keeps_scores, traits_of_engine
from wattree.lowering.usual_model import assuming
from wattree.strategy import StrategyOptions

#: What an assumption says of experts that DeepSpeed's ZeRO-3 gathers module by module.
HOOKS = "ZeRO-3 gathers each of their layers by itself"
#: Of a parameter in fp32. [B]
_FULL_BYTES = 4.0


def with_widths(job: Job, model: ModelGraph, software: Software) -> Job:
    """Return the job with how wide its parameters are, where checkpoints may be narrower."""
    if "parameter_bytes" in job.traits:
        return job
    if traits_of_engine(job, job.strategy) and software.parameter_bytes < _FULL_BYTES:
        stored = (
            "DeepSpeed runs this strategy: parameters and gradients are stored in 16 bits, with "
            "fp32 copies of parameters next to the optimizer's state"
        )
        return assuming(job, [stored])
    if not software.casts:
        return job
    widths = beside_base(job, model, software)
    if "frozen_bytes" in widths and family_of(job, model).frozen_bytes:
        cast = (
            "PEFT's prepare_model_for_kbit_training casts norms, embedding and head to fp32, and "
            "without FSDP layers exchange fp32 activations; if your script does not call it, or "
            "uses GPTQ, set traits: {frozen_bytes: 2}"
        )
        return assuming(job, [cast])
    if not software.frozen_bytes:
        return job
    words = [
        "trained parameters are stored in fp32; if your script loads them in 16 bits (the default "
        "of transformers 5) without FSDP, set traits: {autocast: false, parameter_bytes: 2, "
        "gradient_bytes: 2}"
    ]
    if job.strategy == AUTO and job.software in ENGINES:
        words[0] = f"{words[0]}; DeepSpeed (zero1, zero2) stores 16 bits"
    elif _runs_fsdp(job):
        words[0] = f"{words[0]}; FSDP2 runs zero3 (DeepSpeed, if strategy.bucket is stated)"
    lora = job.model.lora
    if lora is not None or job.model.freeze:
        words = [_of_frozen(software, quantized=lora is not None and bool(lora.base))]
    elif model.trainable_parameters < model.parameters:
        words.append(
            f"parameters that no gradient reaches are stored in {software.frozen_bytes:g} bytes, "
            "as in the checkpoint, unless FSDP shards them"
        )
    return assuming(job, words)


def _runs_fsdp(job: Job) -> bool:
    """Return whether a job has ZeRO-3 of FSDP2 where DeepSpeed can run it, too."""
    options = job.strategy
    if job.software not in ENGINES or not isinstance(options, StrategyOptions):
        return False
    return options.memory.sharding == "zero3" and engine_of(options) == FSDP


def _of_frozen(software: Software, *, quantized: bool) -> str:
    """Return what is assumed of the width of frozen parameters, next to quantized ones or not."""
    others = " other than linear layers" if quantized else ""
    words = (
        f"frozen parameters{others} are stored in {software.frozen_bytes:g} bytes, as in the "
        "checkpoint, unless FSDP shards them, and trained ones in fp32, as with PEFT"
    )
    if software.wide_norms:
        words += "; TRL casts norms to fp32, which is then what layers pass on"
    if quantized and software.name == "hf-trainer":
        words += (
            "; a script with PEFT's prepare_model_for_kbit_training and without TRL's trainers "
            "needs traits: {frozen_bytes: 4}"
        )
    return words


def _of_loss(job: Job, model: ModelGraph, software: Software) -> list[str]:
    """Return what is assumed of a language model's loss in a script of PyTorch, or a release."""
    stated = {"loss_bytes_per_logit", "compiled_loss_bytes", "fused_loss"} & job.traits.keys()
    if stated or not (model.language and job.workload is WorkloadKind.TRAIN):
        return []
    earlier = BEFORE.get(software.name, {}).items()
    since = max((month for month, traits in earlier if "fused_loss" in traits), default="")
    if since and software.fused_loss and job.released is None:
        newest = f"as in releases since {since}"
        return [f"the loss is computed in chunks, {newest}; an earlier 'released' has it whole"]
    if software.name != "pytorch":
        return []
    if software.compiled:
        return [
            "the loss is compiled with the model, whose forward computes it; if your script "
            "computes it outside, set traits: {compiled_loss_bytes: 0}"
        ]
    if not software.autocast and job.precision not in WIDE:
        return [
            "logits are cast to fp32 for the loss; if your script computes the loss of 16-bit "
            "logits, set traits: {loss_bytes_per_logit: 6}"
        ]
    return []


def with_matrix_updates(job: Job) -> Job:
    """Return the job with how an optimizer of matrices splits its work, if it has one.

    Whole matrices go to ranks as in `layer_wise_optimizer.py` of Megatron-LM. `torch.optim.Muon`
    refuses all but two dims, and iterates in bfloat16 (`torch/optim/_muon.py`). With FSDP, parts
    go to and fro in bfloat16, next to the iterations of up to three batches of matrices
    (torchtitan, `experiments/dion_optimizer/muon.py`).
    """
    if job.optimizer not in MATRIX_OPTIMIZERS:
        return job
    rest, iterations = MATRIX_OPTIMIZERS[job.optimizer]
    words = (
        f"{job.optimizer} updates weights of linear layers, {rest} all other parameters; each "
        f"tensor-parallel rank does {iterations} Newton-Schulz iterations, in 16 bits, on its part "
        "of a matrix; a sharded optimizer distributes whole matrices evenly over its ranks; with "
        "ZeRO-3 (FSDP), the two exchanges alongside the iterations that make matrices whole and "
        "parts again, each of a rank's part in 16 bits, are not predicted"
    )
    return assuming(job, [words])


def with_scores(job: Job, model: ModelGraph, software: Software) -> Job:
    """Return the job with what its software does that others do not: scores, experts."""
    words = []
    if runs_all_experts(model, software):
        words.append("every expert runs on every token, as in the transformers library's Llama 4")
    # `min_cut_rematerialization_partition` of PyTorch (torch/_functorch/partitioners.py).
    by_inductor = software.by_inductor and not model.own_family
    if by_inductor and job.workload is WorkloadKind.TRAIN:
        words.append(
            "saved activations are those of eager PyTorch; torch.compile may save fewer and "
            "recompute pointwise operators"
        )
    words += _of_loss(job, model, software)
    if software.expert_layers and has_experts(model):
        one_by_one = (
            "experts are launched one by one, as before release 5 of the transformers library"
        )
        options = job.strategy
        shards = isinstance(options, StrategyOptions) and options.memory.sharding == "zero3"
        if software.zero_group_elements and shards:
            one_by_one += f"; {HOOKS}, which takes most of the time"
        words.append(one_by_one)
    spans = job.cluster.nodes > 1 and "moe_dispatch" not in job.traits
    if spans and software.moe_dispatch != "alltoall" and has_experts(model):
        words.append(
            "a token is sent once to a node, even if several of its experts are there, as with "
            "DeepEP; for a plain all-to-all, which sends a copy for each expert, set traits: "
            "{moe_dispatch: alltoall}"
        )
    since = keeps_scores(job, software, model)
    if since is not None and not software.fused_attention:
        until = f" before {since}" if since else ""
        words.append(
            f"attention is not fused and saves its scores: the transformers library does not run "
            f"{model.name} on SDPA{until} (if yours does: traits: {{fused_attention: true}})"
        )
    return assuming(job, words)


def with_convolutions(
    job: Job, model: ModelGraph, software: Software, rates: Sequence[Rates]
) -> Job:
    """Return the job with the layout of its images and the format of their convolutions.

    The layout where kernels convert it, the format where PyTorch's default is another.
    """
    of_images = sum(
        operator.kind is OperatorKind.CONVOLUTION
        and operator.window is not None
        and len(operator.window.kernel) > 1
        for block in model.blocks.values()
        for operator in block.operators
    )
    # A single one is the patch embedding of a transformer: of ViT-B/16, 0.7 % of all FLOP.
    if of_images < 2:
        return job
    words = []
    is_open = not (software.channels_last or "channels_last" in job.traits)
    if is_open and any(converts_layout(each, software) for each in rates):
        words.append(
            "activations have PyTorch's default layout, which 16-bit convolutions convert; if your "
            "script sets memory_format=torch.channels_last, which is faster, set traits: "
            "{channels_last: true}"
        )
    devices = [pool.node.device for pool in job.cluster.pools]
    plain = Precision.FP32
    runs_tf32 = any(convolution_precision(d, plain, software) is not plain for d in devices)
    if job.precision == plain and runs_tf32 and "tf32_convolutions" not in job.traits:
        words.append(
            "convolutions multiply in TF32, as by default in cuDNN, matmuls in fp32; if your "
            "script turns it off (torch.backends.cudnn.allow_tf32), set traits: "
            "{tf32_convolutions: false}"
        )
    return assuming(job, words)


def with_release(job: Job, software: Software) -> Job:
    """Return the job with what the release of its software did otherwise than today's does."""
    if job.released is None or software.name not in BEFORE:
        return job
    earlier = earlier_traits(software.name, job.released)
    other = {**traits_of_engine(job, job.strategy), **job.traits}
    # Other libraries' modules, or kernels of some models alone, may be as they are now.
    held = {name: value for name, value in earlier.items() if getattr(software, name) == value}
    traits = {name: value for name, value in held.items() if name not in other}
    release = f"{software.name} as released in {job.released}"
    words = in_words(traits, release) if traits else (f"{release}: as the newest",)
    return assuming(job, words)


def with_sizes(job: Job, model: ModelGraph) -> Job:
    """Return the job with sizes of loaded samples from the model where it states none."""
    loader = job.data.loader
    if loader is None or not loader.assumed:
        return job
    if not model.inputs:
        if job.data.has_sequence:
            return job  # token ids
        raise JobError(
            job.source,
            [
                "data.loader.tensor_bytes: is missing, expected a size such as '588 KiB': what the "
                f"device gets of one sample, as {model.name} does not tell"
            ],
        )
    sized = loader.of_inputs(model.sample_bytes(job.data.sequence_length))
    return replace(job, data=replace(job.data, loader=sized))
