"""Facts of a job from which its class of evidence follows."""

from __future__ import annotations

from wattree.accounts.known import JobFacts
from wattree.cost import AUTO_SOFTWARE
from wattree.graph import SCAN
from wattree.hardware import Device
from wattree.lowering.setting import Setting


def facts_of(setting: Setting, device: Device, devices: float) -> JobFacts:
    """Return what the class of evidence of a job follows from."""
    language = "experts" if setting.has_experts else "language"
    return JobFacts(
        kind=language if setting.model.language else "network",
        form=_form(setting),
        vocabulary=float(setting.model.vocabulary),
        software=setting.software.name,
        scripted=setting.software.scripted or _is_own(setting),
        device=device.name,
        vendor=device.vendor,
        devices=devices,
        names_software=setting.job.software != AUTO_SOFTWARE,
    )


def _is_own(setting: Setting) -> bool:
    """Return whether a user wrote the network: released software was measured with its own ones."""
    module = setting.job.model.module
    return module is not None and (module.package or "").partition(".")[0] != "wattree"


def _form(setting: Setting) -> str:
    """Return what is trained, as `JobFacts` names it."""
    source = setting.job.model
    if source.lora is not None or source.freeze:
        return "part"
    if not setting.model.language:
        return "network"
    operators = [each for block in setting.model.blocks.values() for each in block.operators]
    causal = [each.mask.causal for each in operators if each.mask is not None]
    if not causal or any(each.function == SCAN for each in operators):
        return "recurrent"
    return "decoder" if all(causal) else "encoder"
