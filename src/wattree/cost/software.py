"""Defaults of training software: which kernels it launches, what it stores and what it overlaps.

A *trait* is a fact of the software (documented, or read from its source). Jobs may override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from wattree.cost.trait_values import MOST_OF_BUCKET, MOST_OF_LOGIT, WIDTHS, WORDS
from wattree.errors import JobError, did_you_mean

#: Traffic of a loss of few kernels: 16-bit logits are read twice, their gradient is written. [B]
_MERGED_LOSS_TRAFFIC = 3 * 2.0
#: Liger-Kernel (`fused_linear_cross_entropy_forward`): chunks whose logits, in 16 bits and in fp32,
#: are 6 bytes for each element of the hidden state, of 16 to 128 times as many logits. [B]
_FUSED_LOSS_BYTES = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """One software family.

    Attributes:
        name: As a job names it.
        title: For people.
        fused_attention: Attention in one kernel; otherwise the score matrix goes through memory.
        attention_kernels: The fused kernels: `flash4` (FlashAttention 4), `native` (cuDNN, AITER),
            `torch` (those of PyTorch's wheels: AOTriton on AMD's GPUs, else as native), `ampere`
            (FlashAttention 2), `triton` (FlashAttention 1, in Triton or not).
        older_attention: Share of the releases in use that have kernels of before the family's last
            change of them (`attention_rates.older_attention`); attention has the mean rate.
        quantized_attention: Attention reads 8-bit operands, where products do. Its rates are those
            of 16 bits, but backward computes all causal scores, whatever the window.
        fuses_variants: Its kernels of rotations can scale what they rotate (YaRN) and those of
            gates clamp what they read; otherwise such rotations and clamps are steps of PyTorch.
        compiled: Elementwise chains fused by a compiler.
        early_stop: Recomputation ends with the last operator that saves anything for backward (as
            of `torch.utils.checkpoint`, and of any compiler); otherwise, as with reentrant
            checkpoints, all of a region runs again.
        saves_gathered: Where sequence parallelism gathers the input of matmuls, the whole waits for
            backward (PyTorch's DTensor); otherwise a rank's part, which is gathered again.
        saves_listed: Outputs of matmuls that selective checkpoints list wait for backward whether
            it needs them or not (PyTorch's policies, unless a compiler drops them).
        written_out: Norms without means, gates, GPT-2's GELU, rotations and casts of fp32
            parameters are steps in Python that each keep their result; with `compiled` not.
        library_modules: Models are those of the transformers library, some without fused attention.
        gates_in_steps: Gates that clamp run in such steps though other modules do not (Liger).
        pads_vocabulary: It gives models as many words as matmuls are fast with.
        mask_tensors: PyTorch's attention gets masks for windows, and for all of compiled models.
        joint_projections: All projections of a tensor (queries, keys and values; gate and up) are
            one layer with one low-rank adapter (Megatron's `linear_qkv`), not one each.
        expert_layers: Experts are linear layers of their own, which 4-bit formats include (the
            transformers library before 5); otherwise tensors of all experts, which these leave.
        grouped_by_offsets: `torch._grouped_mm` multiplies experts, at the width of their weights;
            in bf16, on compute capabilities 9 and 10, no host waits for their numbers of tokens.
        casts_softmax: Attention written out runs softmax in fp32 whatever the scores have.
        drops_scores, caps_scores: Attention written out drops some, or passes them through a tanh.
        parameter_bytes: Stored parameter used in compute (or sharded master), per element.
        frozen_bytes: The same of a frozen parameter that is not gathered; 0: as trained ones.
        wide_norms: Norms next to 4-bit layers stay in fp32, and so does what those pass on.
        master_bytes: fp32 copy stored by the optimizer in mixed precision, per element.
        gradient_bytes: Accumulated gradient, per element.
        gather_bytes: Parameter on the wire when gathered, per element.
        reduce_bytes: Gradient on the wire when reduced, per element.
        shard_copies: What is copied between computations where parameters are sharded: `gradients`
            into one tensor before they are reduced (FSDP1), or `both` those and gathered parameters
            out of one tensor (FSDP2, `fully_shard`).
        gathers_tensors: Sharded parameters are gathered tensor by tensor, not block by block (XLA).
        keeps_gradients: Buffers hold gradients from one step to the next; otherwise they come with
            the first backward and are dropped after the update (`zero_grad` of PyTorch 2), but for
            those that replicas reduce, whose memory stays reserved.
        placeholder_gradients: Gradients are added up in buffers as they are computed, and autograd
            gets a tensor without values instead, of which there is one of each shape.
        overlap_gradients, overlap_parameters, overlap_tensor, overlap_pipeline: What it hides
            behind compute unless the strategy says otherwise.
        fused_loss: Head, loss and their gradients are computed in chunks of tokens, so no logits
            wait for backward (Liger's fused linear cross entropy, Cut Cross Entropy).
        loss_chunks: Of a fused loss computed as a whole one is: its chunks; 0: it has own kernels.
        loss_bytes_per_logit: Memory that logits and loss keep, per logit. [B]
        earlier_logit_bytes: Added for several micro-batches: logits of the one before. [B]
        split_loss_bytes: The same where tensor parallelism splits the vocabulary; 0: as much. [B]
        compiled_loss_bytes: The same in 16 bits where a compiler merges the loss; 0: it never does.
        loss_traffic_bytes_per_logit: Memory traffic of the loss, per logit. [B]
        accumulates: Where gradients in shards add up over micro-batches if the host updates with
            them: `device`, `host` (each is copied there), or `both` (the sum so far is copied in).
        pipelines_reduce_once: In pipelines, sharded gradients are summed up whole and reduced after
            the last backward of a stage, not alongside it: FSDP2 in `torch.distributed.pipelining`
            (`backward_maybe_with_nosync`, `_add_reduce_grad`; `to_accumulated_grad_if_needed`).
        first_moment_bytes: The first of Adam's moments (`mu_dtype` of optax); 0: as the second.
        second_moment_bytes: Likewise; 0: as PyTorch has it, as wide as what it updates.
        master_gradient_bytes: Copies of the gradient that the optimizer makes for an update and
            shards with its state, per element. Each is one tensor, larger than what backward
            leaves free, so its memory stays reserved.
        loads_all_kernels: A process loads every kernel of its libraries, whether it runs or not, as
            PyTorch before 1.13 and CUDA before 11.7 do.
        earlier_host: Launches and steps take the host what they took PyTorch 1.
        launch_blocking: The host waits for every kernel (`CUDA_LAUNCH_BLOCKING=1`).
        zero_group_elements: Parameters of a rank that ZeRO-3 updates at a time, for which alone it
            has those copies (DeepSpeed's `sub_group_size`); 0: all.
        bucket_replica_elements: Gradients of a bucket for each replica, of at least 40, where
            replicas reduce them during backward; 0: as PyTorch's DDP has them.
        zero_bucket_bytes: Gradients that a sharded optimizer copies into one tensor and reduces at
            a time; 0: where they are. [B]
        zero_gather_bytes: Updated parameters that it gathers into one tensor at a time, or up to
            twice as many; 0: where they are. [B]
        moe_dropless: Every expert takes all tokens routed to it, so sizes are only known at run
            time and the host waits for them; otherwise tokens above a capacity are dropped.
        moe_dispatch: How tokens travel to their experts: `alltoall` (permutation kernels around
            an all-to-all of one copy for each expert), `deepep` or `hybridep` (a token crosses to a
            node once and is copied there; inside of one, all are predicted alike).
        permutes_in_steps: PyTorch's kernels permute, pad, weigh in fp32 and add up routed tokens.
        moe_overlap: Computation of another micro-batch hides part of the exchange.
        saves_quantized: Inputs of products at 8 or 4 bits wait for backward as they were cast
            (Transformer Engine); otherwise at the width of activations, and are cast again.
        stored_inputs: Inputs of products with frozen 4-bit weights are saved (old bitsandbytes).
        row_scales: Matmuls in 8 bits have a scale for each row and column of what they multiply, so
            that each operand is cast for forward and again for backward (torchao's `rowwise`).
        weighs_activations: Weights of routing are multiplied into what experts compute before
            their last product, whose output then need not wait for backward; a bias of that
            product is weighted and added after it, expert by expert, in steps of PyTorch.
        fused_grouped_gemm: One kernel runs the matmuls of all local experts; otherwise they are
            launched one by one (Transformer Engine's `GroupedLinear`, up to 2.17 unless
            NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM is set).
        moe_fused_experts: Products, activation and quantization of local experts are one kernel.
        cuda_graphs: Replayed without the host: `none`, `router`, `partial` (attention too), `full`.
        allocator: `caching` (PyTorch's), `expandable` (with expandable segments) or `bfc` (XLA's).
        channels_last: Convolutions find activations as matrix units read them, or convert NCHW.
        channels_first: Dims over which those on GPUs have NCHW all the same, as `1d and 3d`.
        tuned_convolutions: The library tries its algorithms and uses the fastest
            (`torch.backends.cudnn.benchmark`); otherwise it goes by heuristics.
        tf32_convolutions: Convolutions of fp32 multiply in TF32 where devices of NVIDIA have it, as
            by default in cuDNN and PyTorch (`torch.backends.cudnn.allow_tf32`).
        fused_convolutions: Kernels of convolutions sum up for batch norms, normalize what they load
            and do element-wise work before they store (cuDNN's); in compiled models.
        library_kernels: Norms, activations and the like are kernels of a library, each with the
            passes of `cost.memory_bound`; otherwise they move every operand once.
        torch_modules: Networks have PyTorch's own convolutions, batch norms and optimizers.
        fused_optimizer: An update passes over memory once; otherwise each of its operations does.
        foreach: One that is not fused works on lists of all parameters (PyTorch's default on GPUs):
            those of Adam and RMSprop need a value per parameter more.
        full_table_state: 8-bit optimizers keep the state of embedding tables in 32 bits
            (`register_module_override` of bitsandbytes, which the Trainer calls).
        sparse_gradients: Embedding tables get gradients for the rows that were looked up only.
        fused_interactions: One kernel multiplies the features of a sample with each other and
            writes the pairs that the next layer reads (NVIDIA's DLRM); otherwise products, the
            choice of pairs and their concatenation are kernels of their own.
        autocast: Parameters are stored in fp32 and cast to 16 bits where products need them, in
            each forward pass; layer norms, softmax and losses run in fp32 (PyTorch's AMP).
        promotes_types: What autocast computes of fp32 stays in fp32 until a product casts it;
            otherwise models are cast as a whole, and norms cast their results back (apex's O2).
        clips_gradients: Gradients are scaled to a norm before the update, in passes of their own.
        loss_scaling: Gradients are scaled back before the update, in a pass of their own (fp16).
        inference_kernels: One kernel for each operator, as inference engines have them: norms and
            rotary embeddings are fused, products of few rows are split along what they sum over,
            experts without tokens are not read, and weights of 8 or 4 bits are stored so. Otherwise
            kernels are those of training.
        cache_bytes: Keys and values in the KV cache, per element.
        grouped_cache: Query heads that share keys and values read the KV cache once for all of
            them (XQA, FlashInfer, FlashDecoding); otherwise each for itself, as kernels up to 2023
            do, of which caches of the device serve a part.
        scripted: Its users write the loop or what feeds it (a library); otherwise a released recipe
            is run. Steps of scripts are slower than predicted more often, and by more.
        broadcasts_data: One rank of a tensor-parallel group loads data and hands it to the others.
        async_checkpoints: They leave for storage while steps go on (Orbax's and MaxText's default).
    """

    name: str
    title: str
    fused_attention: bool = True
    attention_kernels: str = "native"
    older_attention: float = 0.0
    quantized_attention: bool = False
    fuses_variants: bool = True
    compiled: bool = False
    early_stop: bool = False
    saves_gathered: bool = False
    saves_listed: bool = False
    written_out: bool = False
    library_modules: bool = False
    gates_in_steps: bool = False
    pads_vocabulary: bool = False
    mask_tensors: bool = False
    joint_projections: bool = False
    expert_layers: bool = False
    grouped_by_offsets: bool = False
    casts_softmax: bool = True
    drops_scores: bool = True
    caps_scores: bool = True
    parameter_bytes: float = 2.0
    frozen_bytes: float = 0.0
    wide_norms: bool = False
    master_bytes: float = 4.0
    gradient_bytes: float = 4.0
    gather_bytes: float = 2.0
    reduce_bytes: float = 4.0
    shard_copies: str = "none"
    gathers_tensors: bool = False
    keeps_gradients: bool = True
    placeholder_gradients: bool = False
    overlap_gradients: bool = True
    overlap_parameters: bool = True
    overlap_tensor: bool = False
    overlap_pipeline: bool = True
    fused_loss: bool = False
    loss_chunks: float = 0.0
    loss_bytes_per_logit: float = 4.0
    earlier_logit_bytes: float = 0.0
    split_loss_bytes: float = 0.0
    compiled_loss_bytes: float = 0.0
    loss_traffic_bytes_per_logit: float = 20.0
    accumulates: str = "device"
    pipelines_reduce_once: bool = False
    first_moment_bytes: float = 0.0
    second_moment_bytes: float = 0.0
    master_gradient_bytes: float = 0.0
    loads_all_kernels: bool = False
    earlier_host: bool = False
    launch_blocking: bool = False
    zero_group_elements: float = 0.0
    bucket_replica_elements: float = 0.0
    zero_bucket_bytes: float = 0.0
    zero_gather_bytes: float = 0.0
    moe_dropless: bool = True
    moe_dispatch: str = "alltoall"
    permutes_in_steps: bool = False
    moe_overlap: bool = False
    saves_quantized: bool = False
    stored_inputs: bool = False
    row_scales: bool = False
    weighs_activations: bool = False
    fused_grouped_gemm: bool = True
    moe_fused_experts: bool = False
    cuda_graphs: str = "none"
    allocator: str = "caching"
    channels_last: bool = True
    channels_first: str = "none"
    tuned_convolutions: bool = True
    tf32_convolutions: bool = True
    fused_convolutions: bool = False
    library_kernels: bool = False
    torch_modules: bool = False
    fused_optimizer: bool = True
    foreach: bool = True
    full_table_state: bool = False
    sparse_gradients: bool = False
    fused_interactions: bool = False
    autocast: bool = False
    promotes_types: bool = True
    loss_scaling: bool = False
    clips_gradients: bool = False
    scripted: bool = False
    broadcasts_data: bool = False
    async_checkpoints: bool = False
    inference_kernels: bool = False
    cache_bytes: float = 2.0
    grouped_cache: bool = True

    def stored_bytes(self, *, trainable: bool, gathered: bool, quantized: float) -> float:
        """Return the bytes of an element of a parameter where it is stored.

        Args:
            trainable: It is updated.
            gathered: Devices store parts of it, and gather the whole.
            quantized: Its own bytes if it is quantized, else 0.
        """
        own_bytes = self.parameter_bytes if trainable or gathered else self.frozen_bytes
        return quantized or own_bytes or self.parameter_bytes

    @property
    def casts(self) -> bool:
        """Whether matmuls cast what they read: parameters of fp32, under autocast."""
        return self.autocast and self.parameter_bytes >= 4.0

    def logit_bytes(self, *, split: bool = False, width_bytes: float = 2.0) -> float:
        """Return the memory that logits and loss keep, per logit, compiled as they are. [B]

        Args:
            split, width_bytes: A split vocabulary; a logit's width, as the head writes it. [B]
        """
        if self.fused_loss and not self.loss_chunks:
            return _FUSED_LOSS_BYTES
        merged = self.compiled_loss_bytes * width_bytes / 2.0 if self.compiled else 0.0
        kept = merged or (split and self.split_loss_bytes) or self.loss_bytes_per_logit
        return kept / self.loss_chunks if self.fused_loss else kept

    @property
    def loss_traffic_bytes(self) -> float:
        """Memory traffic of the loss, per logit, compiled as it is. [B]"""
        by_kernel = self.fused_loss and self.loss_chunks <= 1.0
        merged = by_kernel or (self.compiled and self.compiled_loss_bytes > 0)
        return _MERGED_LOSS_TRAFFIC if merged else self.loss_traffic_bytes_per_logit

    @property
    def runs_steps(self) -> bool:
        """Whether what models write out in Python runs step by step (`cost.written_out`)."""
        return self.written_out and not (self.compiled or self.inference_kernels)

    def reads_mask(self, *, window: bool) -> bool:
        """Return whether fused attention reads a mask and computes all scores, masked or not.

        PyTorch's has no windows. Of a compiled model the transformers library makes all masks (up
        to 5.23: its issue 48925).

        Args:
            window: A window is shorter than the sequence.
        """
        return self.mask_tensors and self.attention_kernels == "torch" and (window or self.compiled)

    @property
    def by_inductor(self) -> bool:
        """Whether PyTorch's compiler makes the kernels; what XLA compiles has its allocator."""
        return self.compiled and self.allocator != "bfc"

    @property
    def stops_early(self) -> bool:
        """Whether recomputation ends with the last operator that keeps anything for backward."""
        return self.compiled or self.early_stop

    def launch_item(self, kind: str) -> str:
        """Return the item with the host's time per kernel on a kind of device, by what launches.

        Modules in Python; what PyTorch compiles of them; or a program of the whole step: XLA's, and
        those of all accelerators that are no GPUs.
        """
        if self.earlier_host:
            return "earlier_launch_s"
        if self.allocator == "bfc" or kind not in {"gpu", "cpu"}:
            return "program_launch_s"
        return "compiled_launch_s" if self.compiled else "module_launch_s"

    @property
    def overhead_item(self) -> str:
        """Item of the family with the time of a step in which no operator runs."""
        return "earlier_step_overhead_s" if self.earlier_host else "step_overhead_s"

    def routing_item(self, kind: str) -> str | None:
        """Return the constant of the host's time at the routing of a layer of experts, if any.

        A step that is one graph has no host in it to wait for sizes, nor has one of XLA, which has
        them: all on a kind of device "tpu". Graphs of the router alone leave the host as it is.
        """
        by_xla = self.allocator == "bfc" or kind == "tpu"
        waits = self.moe_dropless and not (self.inference_kernels or by_xla)
        if self.cuda_graphs == "full" or not waits:
            return None
        return "moe_host_graphed_s" if self.cuda_graphs == "partial" else "moe_host_s"

    def with_traits(self, traits: Mapping[str, Any]) -> Software:
        """Return a copy with some traits replaced.

        Raises:
            JobError: A trait is unknown.
        """
        known = {f.name for f in fields(self)} - {"name", "title"}
        problems = [
            f"software trait '{name}' is unknown; {did_you_mean(name, known)}"
            f"known: {', '.join(sorted(known))}"
            for name in traits.keys() - known
        ]
        problems += [
            f"software trait '{name}': found {value!r}, expected {expected}"
            for name, value in traits.items()
            if name in known and (expected := expected_instead(name, value))
        ]
        if problems:
            raise JobError("software", problems)
        changes = dict(traits)
        if "parameter_bytes" in changes:  # said of all
            changes.setdefault("frozen_bytes", 0.0)
        if changes.get("fused_loss"):
            changes.setdefault("earlier_logit_bytes", 0.0)
        if "loss_bytes_per_logit" in changes:
            others = ("compiled_loss_bytes", "split_loss_bytes", "earlier_logit_bytes")
            changes = dict.fromkeys(others, 0.0) | {"loss_chunks": 1.0} | changes
        return replace(self, **changes)


def expected_instead(trait: str, value: object) -> str:
    """Return what a trait takes, in words, where `value` is none of that; else nothing."""
    if trait in WORDS:
        return "" if value in WORDS[trait] else f"one of {', '.join(WORDS[trait])}"
    default = _DEFAULTS.get(trait, "")
    if isinstance(default, str):
        return "" if isinstance(value, str) else "a name"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if trait in WIDTHS:
        widths = ", ".join(f"{width:g}" for width in WIDTHS[trait])
        return "" if number in WIDTHS[trait] else f"one of {widths}, bytes an element"
    bucket = MOST_OF_BUCKET if trait.startswith(("zero_", "bucket_")) else MOST_OF_LOGIT
    most = 1.0 if trait == "older_attention" else bucket
    return "" if 0 <= number <= most else f"a number from 0 to {most:,.0f}"


#: Trait → its default where a family has no other.
_DEFAULTS = {each.name: each.default for each in fields(Software)}
