"""Devices without measured runs, whose predictions rest on constants of others."""

from __future__ import annotations

from wattree.accounts import constant_classes as names
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import measured_of
from wattree.lowering.setting import Setting

#: Level of a device's constants → whose constants stand in for its own.
_STAND_INS = {"architecture": "its architecture", "pooled": "all devices"}


def unmeasured_devices(setting: Setting) -> tuple[str, ...]:
    """Return one sentence for each device of a job without measured runs, of it or of its die.

    Models of tokens and others count apart. Most of the step is taken to rest on products, of
    networks on convolutions.
    """
    found = {}
    for pool in setting.job.cluster.pools:
        device = pool.node.device
        facts = facts_of(setting, device, pool.devices)
        measured = measured_of(setting.calibration.residuals, facts.kind)
        rate = names.CONVOLUTION if facts.kind == "network" else names.PRODUCTS
        known = facts.known(measured, {rate: 1.0}, constants_of(setting, device))
        if (others := _STAND_INS.get(known.level)) is not None:
            words = f"no measured runs of such models; constants of {others}"
            found[device.name] = f"{device.name}: {words}"
    return tuple(found.values())
