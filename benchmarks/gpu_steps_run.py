"""A plain step of a model of the transformers library on one device: training, forward, generation.

What a job says is run as its users do: fp32 parameters under autocast or 16-bit ones, fused AdamW
behind a clipped norm, checkpoints of blocks, LoRA by peft, `torch.compile`, greedy generation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
    trains = job.get("workload", "train") == "train"
    adapts = isinstance(job["model"], Mapping)
    is_wide = trains and not adapts and job.get("traits", {}).get("parameter_bytes", 4) == 4
    model = _built(module, torch.float32 if is_wide else torch.bfloat16, device)
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
    autocasts = job.get("traits", {}).get("autocast", True)
    return _training(model, _batch(model, job, device), device, autocasts=autocasts)


def _built(module: Mapping[str, Any], dtype: torch.dtype, device: str) -> Any:
    import transformers

    class_ = getattr(transformers, module["class"])
    config = class_.config_class(**module["config"])
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return class_(config)
    finally:
        torch.set_default_dtype(before)


def _adapted(model: Any, lora: Mapping[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = [name for part in lora["targets"] for name in _TARGETS[part]]
    rank = lora["rank"]
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))


def _batch(model: Any, job: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return drawn inputs with their labels."""
    samples = job["data"]["global_batch"]
    config = model.config
    if "sequence_length" not in job["data"]:
        size = config.image_size
        images = torch.randn(samples, 3, size, size, device=device)
        labels = torch.randint(config.num_labels, (samples,), device=device)
        return {"pixel_values": images, "labels": labels}
    ids = _tokens(config, samples, job["data"]["sequence_length"], device)
    return {"input_ids": ids, "labels": ids, **_without_cache(config)}


def _tokens(config: Any, samples: int, length: int, device: str) -> torch.Tensor:
    return torch.randint(1, config.vocab_size, (samples, length), device=device)


def _without_cache(config: Any) -> dict[str, bool]:
    return {"use_cache": False} if getattr(config, "use_cache", False) else {}


def _training(
    model: nn.Module, batch: Mapping[str, Any], device: str, *, autocasts: bool
) -> Callable[[], None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    kind = torch.device(device).type

    def step() -> None:
        with torch.autocast(kind, torch.bfloat16, enabled=autocasts):
            loss = model(**batch).loss
        loss.backward()
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
