"""Rates of mixture-of-experts layers, from calibration and what the software's kernels do."""

from __future__ import annotations

from typing import Any, Final

from wattree.cost.attention_rates import has_newer_matrix_units
from wattree.cost.calibration import Calibration
from wattree.cost.precisions import WIDE, precision_class
from wattree.cost.software import Software
from wattree.hardware import Device, Precision

#: Architecture → rows of a tile of `torch._grouped_mm` (`dispatch_bf16_grouped_kernel_on_tile_size`
#: in PyTorch, cuda/GroupMM.cu), and those of later ones.
_TILE_ROWS: Final = {"hopper": 128.0}
_LATER_TILE_ROWS: Final = 256.0


def expert_rates(
    device: Device,
    software: Software,
    precision: Precision,
    calibration: Calibration,
    *,
    launch_s: float,
) -> dict[str, Any]:
    """Return the fields of `Rates` for mixture-of-experts layers.

    Args:
        device: That runs them.
        software: Whose kernels it has.
        precision: Of their products.
        calibration: Constants.
        launch_s: Host time to launch a kernel of a module. [s]
    """
    fused = calibration.general("moe_fused_rate") if software.moe_fused_experts else 1.0
    host = software.routing_item(device.kind)
    # `PartitionedParameterCoordinator` of DeepSpeed fetches ahead in the order of the step before.
    # Experts run in another order, which drops it (`_invalidate_trace`): each layer then waits.
    fetches = software.expert_layers and software.zero_group_elements > 0
    width = precision_class(precision)
    # `a_b_and_out_are_bf16` and `_scaled_mm_allowed_device` (PyTorch, cuda/GroupedBlas.cpp).
    by_offsets = (
        software.grouped_by_offsets
        and precision not in {*WIDE, Precision.FP16}
        and has_newer_matrix_units(device)
    )
    if not software.expert_layers:
        one_by_one = not (software.fused_grouped_gemm or software.moe_fused_experts)
        launch_s = one_by_one * calibration.family(software.name, "program_launch_s")
    return {
        "moe_host_s": calibration.learned(device, host) if host else 0.0,
        "expert_launch_s": launch_s * (software.cuda_graphs != "full"),
        "experts_in_loop": software.expert_layers,
        "grouped_product_rate": calibration.own(device, f"grouped_product_rate.{width}", 1.0)
        if by_offsets
        else 0.0,
        "grouped_tile_rows": _TILE_ROWS.get(device.architecture, _LATER_TILE_ROWS),
        "expert_fetch_s": calibration.general("expert_fetch_s") if fetches else 0.0,
        "permute_rate": calibration.own(device, "permute_rate", 1.0),
        "moe_permute_factor": calibration.general("moe_permute_factor") * fused,
        "moe_exchange_factor": calibration.learned(device, "moe_exchange_factor") * fused,
        "moe_sends_once": software.moe_dispatch in {"deepep", "hybridep"},
    }
