"""What functions that a model writes out in Python move and launch, a kernel for each step.

A norm without means is eight kernels (cast, square, mean, add, root, product, cast, weight), each
of which reads and writes all of its operands; its gradient is sixteen. Counted by a dispatch mode
of PyTorch 2.13 over the modules of transformers 5.23, as tests/cost/test_written_out.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattree.cost.calibration import Calibration
from wattree.cost.software import Software
from wattree.hardware import Device, Precision


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps of one function move and launch.

    Attributes:
        forward_bytes, backward_bytes: Memory traffic by element that one kernel for all of them
            would read or write, where elements have 16 bits. [B]
        forward_kernels, backward_kernels: How many they are, for each tensor that it makes.
        under_autocast: Bytes under autocast over those: it runs powers in fp32 (PyTorch's list,
            torch.amp: "CUDA Ops that autocast to float32"), and fp32 angles make fp32 rotations.
    """

    forward_bytes: float
    backward_bytes: float
    forward_kernels: int
    backward_kernels: int
    under_autocast: float = 1.0


#: Function → its steps, in the order of the fields. A kernel for all reads the input and writes the
#: result of a norm and of a rotation: two elements, where a gate reads two and writes one.
_STEPS: Mapping[str, Steps] = {
    "rms_norm": Steps(18.0, 46.0, 8, 16),
    "rms_norm_fp32": Steps(20.0, 52.0, 8, 17),
    "layer_norm_fp32": Steps(10.0, 12.0, 3, 3),
    "layer_norm_fp32_steps": Steps(30.0, 72.0, 12, 24),
    "rotary": Steps(10.0, 14.0, 5, 8, under_autocast=1.6),
    # As ModernBERT's; Cohere's and ERNIE 4.5's are 26 forward, 40 and 30 backward.
    "rotary_wide": Steps(29.0, 34.0, 8, 10),
    # `GptOssExperts._apply_gate`.
    "silu_clamped_gate": Steps(32 / 3, 86 / 3, 7, 18),
    "gelu_new_gate": Steps(14.0, 22.7, 9, 13, under_autocast=1.75),
    "xielu": Steps(29.0, 60.0, 15, 29, under_autocast=1.76),
    "softcap": Steps(6.0, 7.0, 3, 3),
    "gelu_new": Steps(18.0, 28.0, 8, 11, under_autocast=1.9),
}
#: Clamps of both halves and their concatenation, before the kernel of the gate; backward compares,
#: selects and concatenates.
_CLAMPS = Steps(16 / 3, 10.0, 3, 9)
#: The same of torchtitan's routed tokens (`MoE.forward` with `indices_padding_wrapper`, 2025), by
#: element: a gather, zeros appended, a gather that pads; the scatter back, weights in fp32 between
#: casts, a sum by scattering. Backward gathers, weighs both ways, and adds two input gradients.
_PERMUTATION: Mapping[str, Steps] = {
    "dispatch": Steps(12.0, 20.0, 6, 7),
    "combine": Steps(30.0, 50.0, 7, 10),
}
#: What Inductor leaves of them: casts, weights and gathers are merged, scattered sums are not.
_COMPILED_PERMUTATION: Mapping[str, Steps] = {
    "dispatch": Steps(8.0, 20.0, 4, 6),
    "combine": Steps(14.0, 18.0, 4, 6),
}
#: How names of functions with such variants end, and begin.
CLAMPED_GATE, _SCALED, _CONCATENATED = "_clamped_gate", "_scaled", "_concatenated"
_GATE = Steps(10 / 3, 6.0, 2, 3)


def steps_of(function: str) -> Steps | None:
    """Return the steps of a function, as an operator names it; None where it is one kernel."""
    name = function.removesuffix(_CONCATENATED).removesuffix(_SCALED)
    return _STEPS.get(name) or (_GATE if function.endswith("_gate") else None)


def steps_of_variant(function: str, software: Software) -> tuple[float, Steps] | None:
    """Return what is left of one kernel, and the steps next to it, where it lacks a variant.

    None where one kernel does all.
    """
    if software.gates_in_steps and function.endswith(CLAMPED_GATE):
        steps = steps_of(function)
        return None if steps is None else (0.0, steps)
    if software.fuses_variants:
        return None
    if function.removesuffix(_CONCATENATED).endswith(_SCALED):
        return 0.0, _STEPS["rotary"]
    is_clamped = function.endswith(CLAMPED_GATE) and not software.moe_fused_experts
    return (1.0, _CLAMPS) if is_clamped else None


def steps_of_permutation(function: str, software: Software) -> Steps | None:
    """Return what permutes routed tokens in software without kernels for it; None: these do."""
    if not software.permutes_in_steps:
        return None
    return (_COMPILED_PERMUTATION if software.compiled else _PERMUTATION).get(function)


def weighted_bias_bytes(*, element_bytes: float, weight_bytes: float, backward: bool) -> float:
    """Return the traffic by output of experts of a bias that is weighted and then added. [B]

    Forward multiplies the bias by the weights of its tokens, adds that, and concatenates experts;
    backward multiplies the gradient by both, sums both results, and concatenates. Wider weights
    make all of it as wide, with casts of the results.
    """
    casts = element_bytes + weight_bytes if weight_bytes > element_bytes else 0.0
    if backward:
        return 2.0 * element_bytes + 6.0 * weight_bytes + 2.0 * casts
    return element_bytes + 5.0 * weight_bytes + casts


def launches(
    device: Device,
    software: Software,
    plain: Precision,
    calibration: Calibration,
    *,
    trains: bool = True,
    language: bool = True,
) -> dict[str, Any]:
    """Return the fields of `Rates` for the host: kernels that it launches one by one, steps.

    Where the time of a framework's call was measured on the device, calls run one after another.

    Args:
        device: That they run on.
        software: That launches them.
        plain: Precision of what is not quantized.
        calibration: Constants.
        trains: Autograd records them; otherwise a launch takes the host less, and no optimizer and
            no log stand between steps.
        language: The model is one of language, to whose training rates were fitted.
    """
    launch_s = calibration.family(software.name, software.launch_item(device.kind))
    launch_s *= 1.0 if trains else calibration.general("no_gradient_launch")
    blocking_s = calibration.general("blocking_launch_s") if software.launch_blocking else 0.0
    if (called_s := calibration.own(device, "dispatch_s", 0.0)) > 0:
        launch_s, blocking_s = 0.0, called_s
    is_graphed = software.cuda_graphs == "full"
    by_kernel = software.library_kernels and not software.written_out
    of_kernels = software.inference_kernels or by_kernel or not language
    of_modules = software.library_kernels or software.written_out
    return {
        "step_overhead_s": _step_overhead_s(software, calibration, trains=trains),
        "launch_s": launch_s,
        "blocking_s": 0.0 if is_graphed else blocking_s,
        # Rates of training have it in them, replayed or not; those of kernels alone do not, such as
        # all of a network's, whether or not a compiler merges some of them.
        "start_s": calibration.general("graph_start_s") * (is_graphed and of_kernels),
        "cuda_graphs": software.cuda_graphs,
        "fuses_steps": software.fused_attention and not of_modules,
        "written_out": calibration.family(software.name, "written_out") * software.runs_steps,
        "written_out_rate": calibration.general("written_out_rate"),
        "dequantization_rate": calibration.general("dequantization_rate"),
        "casts": software.runs_steps and software.casts and plain is Precision.BF16,
    }


def _step_overhead_s(software: Software, calibration: Calibration, *, trains: bool) -> float:
    """Return the time of a step in which no operator runs. [s]

    What a family has of its own is a host that begins each step with an empty queue, which a step
    replayed from one graph does not wait for. The pooled one is what large jobs log and exchange.
    """
    item = software.overhead_item
    own = calibration.found(f"family.{software.name}.{item}") is not None
    if trains and own and software.cuda_graphs == "full":
        return 0.0
    return calibration.family(software.name if trains else "inference", item)
