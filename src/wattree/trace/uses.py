"""What else a step or run has: generation, shared devices, input, training. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from wattree.trace.run import StageUse

#: Parts of an input pipeline as people call them.
PART_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "storage": "reads from storage",
        "workers": "worker processes",
        "cores": "host cores",
        "copies": "copies to the devices",
        "decoder": "the devices' decoders",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """One phase: all prefill passes, or all decode steps.

    Attributes:
        time_s: Its length. [s]
        tokens: Tokens of all sequences that it reads (prefill) or generates (decode).
        tokens_per_s: Tokens over time. [1/s]
        energy_j: Energy of the job's nodes, with PUE. [J]
        energy_per_token_j: Energy over tokens. [J]
        mfu: Model FLOP over time x dense peak.
    """

    time_s: float
    tokens: int
    tokens_per_s: float
    energy_j: float
    energy_per_token_j: float
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """A step of one token of each sequence, at one length of the cache.

    Attributes:
        cache_length: Positions that each token attends to, including its own.
        step_time_s: Time of the step. [s]
        energy_j: Energy of the step, with PUE. [J]
    """

    cache_length: float
    step_time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationUse:
    """Generation of one batch of sequences.

    Attributes:
        sequences: Sequences of all replicas.
        prompt_length, generate_length: Tokens per sequence.
        time_to_first_token_s: From the first prompt until each sequence has a token. [s]
        time_per_output_token_s: Mean time between tokens of a sequence after its first; None for
            a single token. [s]
        output_tokens_per_s: Generated tokens over the whole time, including prompts. [1/s]
        kv_cache_bytes: KV cache of the fullest rank, for all tokens; None in closed form,
            which gives only the total memory. [B]
        prefill: The phase of the prompts; it generates the first token.
        decode: The phase of the other tokens; None for a single token.
        points: Predicted steps; the time of the others is interpolated.
    """

    sequences: int
    prompt_length: int
    generate_length: int
    time_to_first_token_s: float
    time_per_output_token_s: float | None
    output_tokens_per_s: float
    kv_cache_bytes: float | None
    prefill: PhaseUse
    decode: PhaseUse | None
    points: tuple[DecodePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationUse:
    """Several processes on each device, as terms of a closed queue.

    Attributes:
        processes_per_device: Processes on each device.
        batch_rule: `fixed-global` (they share the batch of one) or `fixed-per-process`.
        device_sharing: `mps` (kernels run at once if the device has capacity) or `time-sliced`.
        samples_per_process: Samples per step.
        utilization: Share of the device's capacity used over the step: kernels of all processes,
            weighted with the share that they fill unless time-sliced, and updates.
        host_s: Host time of a process that its kernels do not hide: think time. [s]
        device_s: Time of its kernels on an unshared device: demand. [s]
        waits_s: Time that it waits for kernels of the others. [s]
        barrier_s: Time that the average process waits for the last one at the step's end. [s]
        update_s: Time of averaging gradients on the device, and of all updates. [s]
        fill: Share of the device's compute units that kernels fill, on average.
        contention: Slowdown by each further process on the device.
        memory_bytes_per_process: Memory of a process on the fullest device. [B]
    """

    processes_per_device: int
    batch_rule: str
    device_sharing: str
    samples_per_process: float
    utilization: float
    host_s: float
    device_s: float
    waits_s: float
    barrier_s: float
    update_s: float
    fill: float
    contention: float
    memory_bytes_per_process: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """A run of `train`.

    Attributes:
        steps: Steps since the first one, including those before the run was resumed.
        first_step: Step from which this process continued; 0 for a new run.
        measured_steps: Measured steps of this process, without its warm-up.
        losses: Loss of every step, over the whole batch and all ranks.
        loss: Mean of the last ten losses.
        target_loss: The loss to reach; None without one.
        target_step: Step at which it was reached; None if it was not.
        interrupted: Whether the run was asked to stop.
        stages: Stage → time and energy of a step, the mean over ranks. [s, J]
        sent_bytes: Payload that a rank sends in a step, the mean over ranks. [B]
        sent_by: Kind of collective → its part of `sent_bytes`. [B]
        collectives: Calls of a rank in a step.
        parameters_per_rank: Elements on a rank, the mean over ranks.
        launcher: The launcher of the ranks.
        processes_per_device: Ranks that share a device.
        batch_rule: Whether they divide its batch (`fixed-global`) or have one each
            (`fixed-per-process`).
        samples: Samples per step of all ranks; 0 if not set.
        learning_rate_scale: Factor on the job's learning rate.
    """

    steps: int
    first_step: int
    measured_steps: int
    losses: tuple[float, ...]
    loss: float
    target_loss: float | None = None
    target_step: int | None = None
    interrupted: bool = False
    stages: Mapping[str, StageUse] = field(default_factory=dict)
    sent_bytes: float = 0.0
    sent_by: Mapping[str, float] = field(default_factory=dict)
    collectives: float = 0.0
    parameters_per_rank: float = 0.0
    launcher: str = ""
    processes_per_device: int = 1
    batch_rule: str = "fixed-global"
    samples: int = 0
    learning_rate_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialsFix:
    """The need of one part if the step is not to wait for it.

    Attributes:
        part: Part of the input pipeline.
        change: Description of the change.
        needed: Required amount: workers per device, cores per node, bytes or samples per second.
        found: Available amount.
    """

    part: str
    change: str
    needed: float
    found: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialsUse:
    """The input pipeline of a job in steady state.

    Attributes:
        samples_per_s: Part → its rate for the whole job: `storage`, `workers`,
            `cores`, `copies` and `decoder`, if the job uses them; and `step`, the rate of
            a step that does not wait.
        bound: The slowest part.
        is_input_bound: Whether the step waits for it.
        exposed_s: Time of a step that the job waits for its data. [s]
        first_batch_s: Time of the job's first micro-batch, before any is prefetched. [s]
        host_memory_bytes: Memory of prefetched batches on the fullest node. [B]
        fixes: The needs of all parts that are too slow.
    """

    samples_per_s: Mapping[str, float]
    bound: str
    is_input_bound: bool
    exposed_s: float
    first_batch_s: float
    host_memory_bytes: float
    fixes: tuple[MaterialsFix, ...] = ()
