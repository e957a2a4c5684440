"""The software families: what each does, by its documentation and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wattree.cost.software import Software
from wattree.errors import UnknownNameError

#: Leaves the choice of the software family to the kind of model.
AUTO_SOFTWARE = "auto"

_FSDP: dict[str, Any] = {
    "parameter_bytes": 4.0,  # fp32 shard is the master copy
    "master_bytes": 0.0,
    "reduce_every_micro_batch": True,
    "keeps_gradients": False,
}
#: `flat_param` of FSDP1 is split in views, whose backward concatenates gradients.
_FSDP1: dict[str, Any] = {**_FSDP, "shard_copies": "gradients"}
#: `split_with_sizes_copy` and `chunk_cat` of FSDP2 (fully_shard/_fsdp_collectives.py).
_FSDP2: dict[str, Any] = {**_FSDP, "shard_copies": "both"}
#: fp32 parameters and gradients, also in mixed precision: there, autocast makes 16-bit copies.
_EAGER: dict[str, Any] = {
    "fused_attention": False,
    "written_out": True,
    "library_modules": True,
    "parameter_bytes": 4.0,
    "master_bytes": 0.0,
    "gather_bytes": 4.0,
    "channels_last": False,
    "library_kernels": True,
    "fused_optimizer": False,
    "autocast": True,
}

#: Families whose modules of networks are PyTorch's.
OF_PYTORCH: Final = frozenset({"pytorch", "pytorch-ngc"})

#: `torch.nn.functional.cross_entropy` of 16-bit logits, which stay, as do those in fp32 and their
#: log-probabilities; 16-bit gradients come on top. [B]
_LOSS_BYTES = 10.0
#: What Inductor's partition keeps of it (`min_cut_rematerialization_partition`): 16-bit logits, two
#: numbers a row, and then the gradient; casts and exponentials are fused. [B]
_COMPILED_LOSS_BYTES = 2 * 2.0
#: Models of the transformers library: `modeling_llama.py`, `ForCausalLMLoss`.
_TRANSFORMERS: dict[str, Any] = {
    "attention_kernels": "torch",
    "written_out": True,
    "library_modules": True,
    "mask_tensors": True,
    # `gradient_checkpointing_enable` of transformers 5: `use_reentrant=False`.
    "early_stop": True,
    # `grouped_mm_experts_forward`, its default.
    "grouped_by_offsets": True,
    # Cast, log-softmax and pick: 14; cleared gradient, log-softmax backward and cast: 22.
    "loss_traffic_bytes_per_logit": 36.0,
    "loss_bytes_per_logit": _LOSS_BYTES,
    # The loss is in the model's forward, which `torch.compile` compiles.
    "compiled_loss_bytes": _COMPILED_LOSS_BYTES,
    "keeps_gradients": False,
    "scripted": True,
}
#: The same, trained through Accelerate. What is trained is in fp32; what is frozen, in the 16 bits
#: of its checkpoint (transformers 5). FSDP2 alone casts all (`fsdp2_prepare_model`).
_ACCELERATED: dict[str, Any] = {**_FSDP2, **_TRANSFORMERS, "autocast": True, "frozen_bytes": 2.0}

#: DeepSpeed's engine with ZeRO: 16-bit parameters and their fp32 copies in shards.
_DEEPSPEED: dict[str, Any] = {
    "autocast": False,
    "parameter_bytes": 2.0,
    "frozen_bytes": 0.0,
    "master_bytes": 4.0,
    "gather_bytes": 2.0,
    # Gradients are kept and reduced in the model's 16 bits (`communication_data_type`,
    # `data_types.grad_accum_dtype`), put in one tensor and copied to fp32 for the update.
    "gradient_bytes": 2.0,
    "reduce_bytes": 2.0,
    "master_gradient_bytes": 2.0 + 4.0,
    # `sub_group_size` of its third stage.
    "zero_group_elements": 1e9,
    # `reduce_bucket_size`: 5e8 16-bit values; parameters are gathered in place (`shard_copies`).
    "zero_bucket_bytes": 5e8 * 2,
    # Gradients of ZeRO lie in flat buffers of its partitions.
    "keeps_gradients": True,
    "reduce_every_micro_batch": False,
    "shard_copies": "none",
}
#: Family with several engines → engine → its traits, where they differ from the family's.
ENGINES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    family: {"DEEPSPEED": _DEEPSPEED} for family in ("accelerate", "hf-trainer")
}

#: What a compiler of the whole step makes of it.
_FUSING: dict[str, Any] = {
    "channels_last": True,
    "library_kernels": False,
    "fused_optimizer": True,
}

#: Networks in fp16, with fp32 weights in the optimizer alone (`multi_precision` of MXNet's).
_MULTI_PRECISION: dict[str, Any] = {
    **dict.fromkeys(("parameter_bytes", "gather_bytes", "gradient_bytes", "reduce_bytes"), 2.0),
    "autocast": False,
    "master_bytes": 4.0,
}

_MEGATRON: dict[str, Any] = {
    # `get_batch_on_this_tp_rank` of Megatron-LM: only tensor rank 0 has an iterator over the data.
    "broadcasts_data": True,
    # `--make-vocab-size-divisible-by 128`, its default.
    "pads_vocabulary": True,
    # `bucket_size = max(40000000, 1000000 * dp_size)` of Megatron-Core's DDP.
    "bucket_replica_elements": 1e6,
    # `LinearAdapter` and `ParallelLinearAdapter` on `linear_qkv` and `linear_fc1` (NeMo,
    # Megatron-Bridge).
    "joint_projections": True,
    # `apply_rotary_pos_emb` leaves Transformer Engine's kernel where `mscale` is not 1, and
    # `weighted_bias_quick_geglu_impl` clamps before its own (Megatron-Core 0.15 to 0.19).
    "fuses_variants": False,
}
#: Layers of Megatron-Core with Transformer Engine.
_MEGATRON_CORE: dict[str, Any] = {
    **_MEGATRON,
    # `get_dummy_wgrad` of Transformer Engine since 2.3; Megatron-Core's layers use it too.
    "placeholder_gradients": True,
    "saves_quantized": True,
    "weighs_activations": True,
    "fused_grouped_gemm": False,
}

#: Sources of the software defaults: documentation and source of the projects, see docs.
SOFTWARE: Mapping[str, Software] = {
    family.name: family
    for family in (
        Software(
            name="megatron-core",
            title="NeMo and Megatron-Bridge: recipes for Megatron-Core",
            overlap_tensor=True,
            # `grad_reduce_in_fp32=False` in all performance recipes of NeMo 2 and Megatron-Bridge.
            gradient_bytes=2.0,
            reduce_bytes=2.0,
            # DeepEP or HybridEP in most of Megatron-Bridge's recipes since release 0.1.
            moe_dispatch="deepep",
            # `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` of Megatron-Bridge's recipes.
            allocator="expandable",
            **_MEGATRON_CORE,
        ),
        Software(
            name="megatron-lm",
            title="Megatron-LM and what starts Megatron-Core by its arguments",
            # `--tp-comm-overlap` is off by default (Megatron-LM, megatron/training/arguments.py).
            overlap_tensor=False,
            **_MEGATRON_CORE,
        ),
        Software(
            name="generic",
            title="Any other training software of language models",
            # PyTorch without fused norms, gates and losses, whose modules choose their attention.
            **_TRANSFORMERS
            | {
                "scripted": False,
                "library_modules": False,
                "mask_tensors": False,
                "compiled_loss_bytes": 0.0,
                "grouped_by_offsets": False,
                # As autograd, ColossalAI and nanotron keep it; Megatron gathers it again.
                "saves_gathered": True,
                # As DeepSpeed, ColossalAI and InternEvo store them; nanotron adds up in fp32. Of
                # arXiv:2311.05610's layouts 24 of 248 that ran are said not to fit, and 35 of 339
                # that did not to fit; with fp32, 53 and 24.
                "gradient_bytes": 2.0,
            },
        ),
        Software(
            name="megatron-lm-2021",
            title="Megatron-LM 2021-22 (unfused attention)",
            fused_attention=False,
            loads_all_kernels=True,
            reduce_bytes=2.0,
            overlap_gradients=False,
            overlap_parameters=False,
            overlap_pipeline=False,
            **_MEGATRON,
        ),
        Software(
            name="megatron-deepspeed",
            title="Megatron-DeepSpeed 2022 (ZeRO-1, unfused attention)",
            fused_attention=False,
            loads_all_kernels=True,
            gradient_bytes=2.0,
            # `flatten(averaged_gradients)` and its cast to fp32 (`step` of DeepSpeed 0.5,
            # runtime/zero/stage2.py).
            master_gradient_bytes=2.0 + 4.0,
            # The model ends in a cast to fp32 (`GPTModelPipe`), in which the loss computes its
            # gradient. The last stage, or the only one, keeps those logits of a micro-batch until
            # it has new ones in the same of two buffers (`TrainSchedule.num_pipe_buffers`,
            # `PipelineEngine._exec_forward_pass`).
            loss_bytes_per_logit=2 * 4.0,
            earlier_logit_bytes=4.0,
            # "CUDA_LAUNCH_BLOCKING may be set" (BigScience chronicles, 2022); the gain from larger
            # micro-batches in its tables says that it was.
            launch_blocking=True,
            # `reduce_bucket_size` and `allgather_bucket_size`: 5e8 16-bit values. Stage 1 ignores
            # `overlap_comm` and `contiguous_gradients` (`_configure_zero_optimizer`). `all_gather`
            # of a list of tensors gathers into one of its own.
            zero_bucket_bytes=5e8 * 2,
            zero_gather_bytes=5e8 * 2,
            reduce_bytes=2.0,
            overlap_gradients=False,
            overlap_parameters=False,
            overlap_pipeline=False,
            **_MEGATRON,
        ),
        Software(
            name="megatron-te",
            title="Megatron-LM + Transformer Engine, no communication overlap",
            overlap_tensor=False,
            overlap_pipeline=False,
            **_MEGATRON_CORE,
        ),
        Software(
            name="llm-foundry",
            title="Composer / llm-foundry (PyTorch FSDP1)",
            attention_kernels="ampere",
            # `activation_checkpointing_reentrant: false` of all files in scripts/train/yamls.
            early_stop=True,
            reduce_bytes=2.0,
            # `loss_fn: fused_crossentropy` by default: besides 16-bit logits only their gradient
            # (llm-foundry, models/mpt/modeling_mpt.py).
            loss_bytes_per_logit=2.0,
            saves_quantized=True,
            **_FSDP1,
        ),
        Software(
            name="torchtitan",
            title="torchtitan (PyTorch FSDP2)",
            attention_kernels="torch",
            saves_gathered=True,
            saves_listed=True,
            loss_bytes_per_logit=12.0,
            # `loss_parallel`: backward has fp32 log-probabilities, a cleared gradient, exponentials
            # and their sum at once (PyTorch, `_nll_loss_and_log_softmax_backward`).
            split_loss_bytes=4 * 4.0,
            # `build_cross_entropy_loss` compiles the loss with the model (components/loss.py, since
            # 2025): none of its steps in fp32 is kept, 16-bit logits and their gradient are.
            compiled_loss_bytes=_COMPILED_LOSS_BYTES,
            # `torch._grouped_mm` of its experts (pull request 1084).
            grouped_by_offsets=True,
            permutes_in_steps=True,
            **_FSDP2 | {"pipelines_reduce_once": True},
        ),
        Software(
            name="pytorch-fsdp-compiled",
            title="PyTorch FSDP with torch.compile (fms-fsdp)",
            attention_kernels="torch",
            compiled=True,
            reduce_bytes=2.0,
            # `CrossEntropyLoss` of 16-bit logits, after the model (fms-fsdp, train_utils.py): they,
            # their log-probabilities and their gradient.
            loss_bytes_per_logit=3 * 2.0,
            **_FSDP1,
        ),
        Software(
            name="deepspeed",
            title="DeepSpeed (ZeRO 1 to 3) with models of the transformers library",
            **_TRANSFORMERS | _DEEPSPEED,
        ),
        Software(
            name="accelerate",
            title="Accelerate (DDP, FSDP2, DeepSpeed) with models of the transformers library",
            # `reduce_dtype` is that of mixed precision (accelerate, MixedPrecisionPolicy).
            reduce_bytes=2.0,
            **_ACCELERATED,
        ),
        Software(
            name="hf-trainer",
            title="Trainer of the transformers library (DDP, FSDP2, DeepSpeed)",
            reduce_bytes=2.0,
            full_table_state=True,
            # `max_grad_norm: 1.0` of its arguments.
            clips_gradients=True,
            **_ACCELERATED,
        ),
        Software(
            name="maxtext",
            title="MaxText (JAX)",
            allocator="bfc",
            compiled=True,
            reduce_bytes=2.0,
            loss_bytes_per_logit=8.0,
            # XLA lays out the gradients of all layers before the loop over them runs backward.
            **_FSDP | {"keeps_gradients": True},
        ),
        Software(
            name="pytorch",
            title="PyTorch 2, eager, AMP by autocast",
            # SDPA is one kernel since 2.0; attention written out is captured as its steps.
            attention_kernels="torch",
            loss_bytes_per_logit=_LOSS_BYTES,
            # nanoGPT, llm.c and the transformers library compute the loss in the model's forward.
            compiled_loss_bytes=_COMPILED_LOSS_BYTES,
            early_stop=True,
            keeps_gradients=False,
            pipelines_reduce_once=True,
            **_EAGER | {"fused_attention": True, "shard_copies": "both", "scripted": True},
        ),
        Software(
            name="pytorch-ngc",
            title="PyTorch examples of NVIDIA in its containers (DeepLearningExamples)",
            loads_all_kernels=True,
            # Counts in 16 bits alone: `memory_format: nhwc` of AMP in ConvNets, `--layout
            # NDHWC` of nnU-Net in 3D. Some cast whole models (O2 of apex in Transformer-XL), others
            # do not (NCF): wide types of all make rows of NCF and DLRM worse.
            **_EAGER | {"channels_last": True, "promotes_types": False},
        ),
        Software(
            name="inference",
            title="Inference engines (TensorRT-LLM, vLLM, SGLang, LMDeploy, gpt-fast)",
            inference_kernels=True,
            # `DEFAULT_VOCAB_PADDING_SIZE` of vLLM: to 64 words.
            pads_vocabulary=True,
            master_bytes=0.0,
            overlap_tensor=False,
            overlap_pipeline=False,
            cuda_graphs="full",
        ),
        Software(
            name="paddle",
            title="PaddlePaddle, static graph",
            # `use_multi_tensor=False` of its optimizers: a kernel updates each parameter.
            scripted=True,
            **_EAGER | {"channels_last": True, "foreach": False},
        ),
        Software(
            name="mxnet",
            title="MXNet in NVIDIA's containers (DeepLearningExamples, MLPerf Training)",
            # `MXNET_USE_FUSION` is on by default, as are, in fp16, `--fuse-bn-relu` and
            # `--fuse-bn-add-relu` of RN50v1.5/runner (DeepLearningExamples).
            compiled=True,
            **_EAGER | _FUSING | _MULTI_PRECISION,
        ),
        Software(
            name="tensorflow-xla",
            title="TensorFlow with XLA and Horovod",
            allocator="bfc",
            compiled=True,
            **_EAGER | _FUSING,
        ),
        Software(
            name="jax",
            title="JAX with jit (Pax, Levanter, T5X, scenic)",
            scripted=True,
            allocator="bfc",
            compiled=True,
            **_EAGER | _FUSING,
        ),
    )
}

#: Family → what differs on TPUs. What XLA makes there of MaxText's `cross_entropy_with_logits`
#: (max_utils.py) reads logits of the 16-bit matmul again in backward: its cast to fp32,
#: exponentials and one-hot targets are in no memory (compiled for v5e and v5p with libtpu of 2026).
#: Levanter and AXLearn run splash attention there; on GPUs, `jax.nn.dot_product_attention` leaves
#: attention to XLA unless asked for cuDNN's kernels. XLA gathers each sharded weight where it is
#: used and reduces each gradient where it is made (same compiler, a loop over Llama's layers).
ON_TPUS: Final[Mapping[str, Mapping[str, Any]]] = {
    "maxtext": {"loss_bytes_per_logit": 2.0, "gathers_tensors": True},
    "jax": {"fused_attention": True, "gathers_tensors": True},
}

#: Family → what differs for latent attention. torchtitan's DeepSeek models run FlexAttention, whose
#: kernels in Triton take 1.6 to 3.2 times as long as FlashAttention 4 on GB200 (PyTorch's blog,
#: 2026), as those of FlashAttention 2 do.
LATENT: Final[Mapping[str, Mapping[str, Any]]] = {"torchtitan": {"attention_kernels": "ampere"}}
#: The same for language models. PaddleNLP's configurations have had `use_flash_attention` and
#: `fp16_opt_level: O2` since 2023: 16-bit parameters and gradients, as they have no
#: `amp_master_grad`, and a fp32 copy of parameters (llm/config/llama/pretrain_argument.json).
FOR_LANGUAGE: Final[Mapping[str, Mapping[str, Any]]] = {
    "paddle": {
        "fused_attention": True,
        "attention_kernels": "ampere",
        **_MULTI_PRECISION,
    }
}


def software_family(name: str, *, language: bool = True, known_family: bool = True) -> Software:
    """Return the family called `name`; raise `UnknownNameError` if there is none.

    Args:
        name: Its name, or `AUTO_SOFTWARE` for the one that users of such a model take.
        language, known_family: The model is one of language, and like those of the catalog.
    """
    if name == AUTO_SOFTWARE:
        name = ("megatron-core" if known_family else "generic") if language else "pytorch"
    if name not in SOFTWARE:
        raise UnknownNameError(kind="software family", name=name, known=SOFTWARE)
    return SOFTWARE[name]
