"""Classes of constants that a step time rests on, and the constants that stand for each."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.cost import FoundConstant
from wattree.cost.attention_rates import open_release, slower_attention
from wattree.cost.calibration import BLOCKING_LAUNCH
from wattree.cost.precisions import precision_class, product_item
from wattree.cost.rates import scaling_items
from wattree.hardware import Device
from wattree.lowering.setting import Setting

#: Classes of constants, in the order in which they are shown.
PRODUCTS, ATTENTION, CONVOLUTION, MEMORY = "products", "attention", "convolution", "memory"
LINKS, NETWORK, EXPERTS, HOST = "links", "network", "expert_exchange", "host"
ROUTING = "routing"  # the host's part that waits for routing decisions of experts
STRAGGLING, OVERHEAD, LOADING = "straggling", "step_overhead", "loading"
HOST_UPDATES = "host_updates"
#: Those that set what a rank neither exchanges nor loads.
COMPUTING_CLASSES = (PRODUCTS, CONVOLUTION, ATTENTION, MEMORY, HOST, ROUTING, OVERHEAD)


def constants_of(
    setting: Setting, device: Device
) -> Mapping[str, tuple[FoundConstant | None, ...]]:
    """Return class of constants → the constants that stand for it, as the look-up finds them."""
    calibration, software = setting.calibration, setting.software
    width = precision_class(setting.precision)

    def of_device(item: str) -> FoundConstant | None:
        return calibration.found_for_device(device, item)

    def of_family(item: str) -> FoundConstant | None:
        return calibration.found_for_family(software.name, item)

    def of_all(item: str) -> FoundConstant | None:
        return calibration.found(f"general.{item}")

    def learned(item: str) -> FoundConstant | None:
        return calibration.found_learned(device, item)

    # Without any, a family has the factor of the reference, which is 1 by definition.
    math_factor = calibration.math_constants(software, device)
    by_library = software.library_kernels
    bandwidth = of_device("library_bandwidth") if by_library else learned("memory_efficiency")
    steps = (of_family("written_out"), of_all("written_out_rate")) if software.runs_steps else ()
    launch = of_family(software.launch_item(device.kind))
    if software.launch_blocking:  # waiting for each kernel takes many times its launch
        launch = calibration.found(BLOCKING_LAUNCH)
    kernels = (device, software, setting.precision)
    scaled = scaling_items(software, setting.precision)
    products = of_device(product_item(device, setting.precision))
    return {
        PRODUCTS: (products, *math_factor, *map(of_all, scaled)),
        ATTENTION: (
            of_device("attention"),
            *map(of_all, slower_attention(*kernels)),
            *open_release(*kernels, calibration),
        ),
        CONVOLUTION: (of_device(f"convolution.{width}"), *math_factor),
        MEMORY: (bandwidth, of_family("elementwise"), *steps),
        LINKS: (of_device("bus_efficiency"),),
        NETWORK: (learned("network_efficiency"),),
        EXPERTS: (learned("moe_exchange_factor"),),
        HOST: (launch,),
        ROUTING: (learned(item),) if (item := software.routing_item(device.kind)) else (),
        STRAGGLING: (learned("straggling_per_doubling"),),
        OVERHEAD: (of_family(software.overhead_item),),
        HOST_UPDATES: (learned("host_update_rate"),),
        LOADING: (learned("staging_bytes_per_s") if setting.has_staging else None,),
    }
