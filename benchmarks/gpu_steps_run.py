"""A plain step of a library's model on one device: training, forward, generation.

What a job says is run as users of transformers and torchvision do: fp32 parameters under autocast,
TF32 or neither, or 16-bit ones; AdamW behind a clipped norm, or SGD with momentum; gradients of
several micro-batches; checkpoints of blocks, LoRA by peft, `torch.compile`, greedy generation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

#: Parts of a job's LoRA → names of modules in the library.
_TARGETS = {"attention.qkv": ["q_proj", "k_proj", "v_proj"]}


def step_of(job: Mapping[str, Any], module: Mapping[str, Any], device: str) -> Callable[[], Any]:
    """Return what runs one step.

    Args:
        job: As in `gpu_steps.yaml`.
        module: Class of the transformers library, with its configuration.
        device: Where, as torch calls it.
    """
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.allow_tf32 = job["precision"] == "tf32"
    trains = job.get("workload", "train") == "train"
    adapts = isinstance(job["model"], Mapping)
    traits = job.get("traits", {})
    torch.backends.cudnn.benchmark = traits.get("tuned_convolutions", False)
    is_wide = trains and not adapts and traits.get("parameter_bytes", 4) == 4
    model = _built(module, torch.float32 if is_wide else torch.bfloat16, device)
    if traits.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    if not trains:
        model = model.eval()
        act = _generation if job["workload"] == "generate" else _forward
        return act(model, job["data"], device)
    if adapts:
        model = _adapted(model, job["model"]["lora"])
    if job["strategy"].get("recompute") == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    if job.get("compile"):
        model.compile()
    samples = job["strategy"]["micro_batch"]
    draw = functools.partial(_images, module) if "function" in module else _texts
    return _training(model, job, draw(model, job, samples, device), device)


def _built(module: Mapping[str, Any], dtype: torch.dtype, device: str) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            if "function" in module:
                package, _, function = module["function"].rpartition(".")
                return getattr(import_module(package), function)(num_classes=module["classes"])
            class_ = getattr(import_module("transformers"), module["class"])
            return class_(class_.config_class(**module["config"]))
    finally:
        torch.set_default_dtype(before)


def _adapted(model: Any, lora: Mapping[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = [name for part in lora["targets"] for name in _TARGETS[part]]
    rank = lora["rank"]
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))


def _texts(
    model: Any, job: Mapping[str, Any], samples: int, device: str
) -> Callable[[], torch.Tensor]:
    """Return what computes the library's own loss of drawn inputs."""
    config = model.config
    if "sequence_length" in job["data"]:
        ids = _tokens(config, samples, job["data"]["sequence_length"], device)
        batch = {"input_ids": ids, "labels": ids, **_without_cache(config)}
    else:
        images, labels = _drawn(samples, config.image_size, config.num_labels, device)
        batch = {"pixel_values": images, "labels": labels}
    return lambda: model(**batch).loss


def _images(
    module: Mapping[str, Any], model: Any, job: Mapping[str, Any], samples: int, device: str
) -> Callable[[], torch.Tensor]:
    """Return what computes the loss of drawn images."""
    images, labels = _drawn(samples, module["image_size"], module["classes"], device)
    if job.get("traits", {}).get("channels_last"):
        images = images.to(memory_format=torch.channels_last)
    return lambda: nn.functional.cross_entropy(model(images), labels)


def _drawn(samples: int, size: int, classes: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(samples, 3, size, size, device=device)
    return images, torch.randint(classes, (samples,), device=device)


def _tokens(config: Any, samples: int, length: int, device: str) -> torch.Tensor:
    return torch.randint(1, config.vocab_size, (samples, length), device=device)


def _without_cache(config: Any) -> dict[str, bool]:
    return {"use_cache": False} if getattr(config, "use_cache", False) else {}


def _training(
    model: nn.Module, job: Mapping[str, Any], loss_of: Callable[[], torch.Tensor], device: str
) -> Callable[[], None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    traits = job.get("traits", {})
    optimizer: torch.optim.Optimizer
    if job["optimizer"] == "momentum":
        optimizer = torch.optim.SGD(trained, lr=1e-5, momentum=0.9)
    else:
        # As the Trainer does, and not PyTorch's own default.
        fuses = traits.get("fused_optimizer", job["software"] == "hf-trainer")
        optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=fuses)
    casts = job["precision"] == "bf16" and traits.get("autocast", True)
    kind = torch.device(device).type
    pieces = job["data"]["global_batch"] // job["strategy"]["micro_batch"]

    def step() -> None:
        for _ in range(pieces):
            with torch.autocast(kind, torch.bfloat16, enabled=casts):
                loss = loss_of()
            (loss / pieces).backward()
        if job["software"] == "hf-trainer":
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _forward(model: Any, data: Mapping[str, Any], device: str) -> Callable[[], Any]:
    ids = _tokens(model.config, data["global_batch"], data["sequence_length"], device)
    return torch.no_grad()(functools.partial(model, ids, **_without_cache(model.config)))


def _generation(model: Any, data: Mapping[str, Any], device: str) -> Callable[[], Any]:
    ids = _tokens(model.config, data["global_batch"], data["prompt_length"], device)
    length = data["generate_length"]
    return functools.partial(
        model.generate,
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        min_new_tokens=length,
        do_sample=False,
        pad_token_id=0,
    )
