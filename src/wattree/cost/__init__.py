"""Time, traffic and memory of operators and collectives, from measurements or formulas."""

from wattree.cost.attention import (
    fused_attention_time_s,
    unfused_attention_time_s,
    unfused_score_bytes,
)
from wattree.cost.calibration import (
    Calibration,
    Constant,
    FoundConstant,
    Residuals,
    device_names,
)
from wattree.cost.calibration_file import (
    SHIPPED_BASE,
    constant_lines,
    load_calibration,
    residual_lines,
)
from wattree.cost.collective import GroupShape, LinkRates, collective_latency_s, port_loads
from wattree.cost.families import AUTO_SOFTWARE, FOR_LANGUAGE, ON_TPUS, SOFTWARE, software_family
from wattree.cost.matmul import matmul_time_s
from wattree.cost.mixed_precision import AUTOCAST, PRECISIONS, at_precision, matrix_precision
from wattree.cost.neighbours import (
    halo_bytes,
    neighbour_latency_s,
    neighbour_loads,
    neighbour_work_s,
    ring_pass_bytes,
)
from wattree.cost.software import Software
from wattree.graph.volume import volume_factor

__all__ = [
    "AUTOCAST",
    "AUTO_SOFTWARE",
    "FOR_LANGUAGE",
    "ON_TPUS",
    "PRECISIONS",
    "SHIPPED_BASE",
    "SOFTWARE",
    "Calibration",
    "Constant",
    "FoundConstant",
    "GroupShape",
    "LinkRates",
    "Residuals",
    "Software",
    "at_precision",
    "collective_latency_s",
    "constant_lines",
    "device_names",
    "fused_attention_time_s",
    "halo_bytes",
    "load_calibration",
    "matmul_time_s",
    "matrix_precision",
    "neighbour_latency_s",
    "neighbour_loads",
    "neighbour_work_s",
    "port_loads",
    "residual_lines",
    "ring_pass_bytes",
    "software_family",
    "unfused_attention_time_s",
    "unfused_score_bytes",
    "volume_factor",
]
