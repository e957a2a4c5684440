"""Two processes train two steps from the exported files, started by the exported command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from wattree.cli.main import run
from wattree.frameworks.engines import STORED_NARROW

pytestmark = pytest.mark.frameworks

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
SHIM = Path(__file__).with_name("as_gpus.py")
#: Longest start of two processes; DeepSpeed compiles its collectives at the first. [s]
LIMIT_S = 600
#: What DeepSpeed compiled, for all tests of a session.
EXTENSIONS = Path(tempfile.gettempdir()) / f"wattree-test-extensions-{os.getuid()}"
CPUS = {"node": "2x-epyc-7742", "nodes": 1}
NARROW_CPUS = {"node": "2x-xeon-8480c", "nodes": 1}
#: A model that is loaded in 16 bits and trained so.
NARROW = {"precision": "bf16", "traits": dict(STORED_NARROW)}
GPUS = {"node": "workstation-rtx-4090", "nodes": 2, "fabric": "datacenter-ethernet"}


def exported_folder(
    tmp_path: Path,
    framework: str,
    cluster: dict[str, Any],
    model: str | dict[str, Any] = "model.json",
    **keys: Any,
) -> Path:
    """Return the folder that `wattree export` writes."""
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    job = tmp_path / "job.yaml"
    text = {
        "model": model,
        "data": {"sequence_length": 32, "global_batch": 8},
        "precision": "fp32",
        "cluster": cluster,
        "software": framework,
        "strategy": {"micro_batch": 2, **keys},
        **(NARROW if cluster is NARROW_CPUS else {}),
    }
    job.write_text(json.dumps(text))
    assert run(["export", str(job), "--to", framework, str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def command_of(folder: Path, *, on_one_node: bool = False) -> str:
    """Return the exported command with this interpreter's launchers, for two steps."""
    launch = folder / "launch.sh"
    text = launch.read_text()
    text = text.replace("torchrun ", f"{sys.executable} -m torch.distributed.run ")
    text = text.replace("accelerate launch", f"{sys.executable} -m accelerate.commands.launch")
    if on_one_node:  # two processes here in place of one on each of two nodes
        text = re.sub(r"--nnodes=2 --nproc_per_node=1", "--nnodes=1 --nproc_per_node=2", text)
        text = re.sub(r"--rdzv_backend.*?\"\$\{MASTER.*?\"", "--standalone", text)
        text = re.sub(r"--machine_rank.*?29500\}\"", "--num_machines 1 --main_process_port 0", text)
        text = text.replace("train.py", f"{SHIM} train.py", 1)
    elif "accelerate.commands.launch" in text:
        text = text.replace(".launch ", ".launch --main_process_port 0 ")
    launch.write_text(text)
    if (settings := folder / "trainer.yaml").exists():
        settings.write_text(settings.read_text() + "max_steps: 2\n")
        return f"bash {launch}"
    return f"bash {launch} --max_steps 2"


def output_of(command: str, folder: Path) -> str:
    """Return what a command prints; all that it started is ended after the limit."""
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "PYTEST_CURRENT_TEST": ""}
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder.parent,
        env={**os.environ, **quiet, "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            for lock in EXTENSIONS.glob("*/lock"):  # else all others wait for what was compiled
                lock.unlink()
    assert process.returncode == 0, text[-3000:]
    return text


def losses(text: str) -> list[float]:
    """Return the losses that a run prints."""
    return [float(found) for found in re.findall(r"(?<![a-z_])'?loss'?:? '?([0-9.]+)", text)]


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_accelerate_trains_replicas(tmp_path: Path, recompute: str) -> None:
    """DDP on two CPU processes, from random weights or from a checkpoint as the README says."""
    pytest.importorskip("accelerate")
    cpus = CPUS if recompute == "full" else NARROW_CPUS
    folder = exported_folder(tmp_path, "accelerate", cpus, sharding="none", recompute=recompute)
    if recompute == "full":
        add_weights(folder)
        replaced = "`(from_config.*?)` by `(from_pretrained.*?)` in train.py"
        found = re.search(replaced, (folder / "README.md").read_text())
        assert found is not None
        script = folder / "train.py"
        script.write_text(script.read_text().replace(*found.groups()))
        assert "from_config(" not in script.read_text()

    assert len(losses(output_of(command_of(folder), folder))) == 2


@pytest.mark.slow
def test_accelerate_trains_shards(tmp_path: Path) -> None:
    """FSDP2, with processes that Accelerate takes for GPUs."""
    pytest.importorskip("accelerate")
    folder = exported_folder(tmp_path, "accelerate", GPUS, sharding="zero3", recompute="full")
    command = f"ACCELERATE_TORCH_DEVICE=cpu {command_of(folder, on_one_node=True)}"

    assert len(losses(output_of(command, folder))) == 2


@pytest.mark.slow
def test_the_trainer_trains_replicas(tmp_path: Path) -> None:
    """DDP on two CPU processes in 16 bits alone; the page of a Trainer user has it in fp32."""
    pytest.importorskip("accelerate")
    folder = exported_folder(tmp_path, "hf-trainer", NARROW_CPUS, sharding="none", recompute="full")

    assert len(losses(output_of(command_of(folder), folder))) >= 2


def add_weights(folder: Path) -> None:
    """Put a checkpoint of the exported model where the README says."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["accelerate", "hf-trainer"])
def test_adapters_are_trained(tmp_path: Path, framework: str) -> None:
    """PEFT finds the modules that the exported arguments name."""
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    model = {"name": "model.json", "lora": {"rank": 4, "targets": ["attention.*", "mlp.down"]}}
    keys = {"sharding": "none", "recompute": "full"}
    folder = exported_folder(tmp_path, framework, CPUS, model, **keys)
    add_weights(folder)

    assert len(losses(output_of(command_of(folder), folder))) >= 2


@pytest.mark.slow
def test_adapters_are_trained_beside_shards(tmp_path: Path) -> None:
    """FSDP2 takes frozen 16-bit weights beside what is trained in fp32."""
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    model = {"name": "model.json", "lora": {"rank": 4, "targets": ["attention.*"]}}
    folder = exported_folder(
        tmp_path, "accelerate", GPUS, model, sharding="zero3", recompute="full"
    )
    add_weights(folder)
    command = f"ACCELERATE_TORCH_DEVICE=cpu {command_of(folder, on_one_node=True)}"

    assert len(losses(output_of(command, folder))) == 2


@pytest.mark.slow
def test_the_trainer_trains_shards(tmp_path: Path) -> None:
    """FSDP2, with processes that Accelerate takes for GPUs."""
    pytest.importorskip("accelerate")
    folder = exported_folder(tmp_path, "hf-trainer", GPUS, sharding="zero3", recompute="full")
    command = f"ACCELERATE_TORCH_DEVICE=cpu {command_of(folder, on_one_node=True)}"

    assert len(losses(output_of(command, folder))) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        *({"sharding": each} for each in ("none", "zero1", "zero2", "zero3")),
        {"sharding": "zero3", "dp": 1, "cp": 2, "context": "ulysses"},
        {"sharding": "zero1", "dp": 1, "pp": 2},
    ],
)
def test_deepspeed_trains_every_stage(tmp_path: Path, keys: dict[str, Any]) -> None:
    """ZeRO on two CPU processes with gloo, as the exported command starts it."""
    pytest.importorskip("deepspeed")
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        pytest.skip("DeepSpeed compiles its collectives of CPUs: needs c++ and ninja")
    folder = exported_folder(tmp_path, "deepspeed", CPUS, recompute="full", **keys)

    assert len(losses(output_of(command_of(folder), folder))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen3", "tie_word_embeddings": True}])
def test_stages_compute_what_the_model_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The layers that DeepSpeed cuts a pipeline from, with the weights of a checkpoint."""
    pytest.importorskip("deepspeed")
    keys = {"sharding": "none", "dp": 1, "pp": 2, "recompute": "none"}
    folder = exported_folder(tmp_path, "deepspeed", CPUS, **keys)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    add_weights(folder)
    script = Path(__file__).parent / "scripts" / "cut_model.py"

    whole, cut = losses(output_of(f"DS_ACCELERATOR=cpu {sys.executable} {script}", folder))
    assert cut == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["accelerate", "hf-trainer"])
def test_deepspeed_shards_for_accelerate_and_the_trainer(tmp_path: Path, framework: str) -> None:
    """ZeRO-2 by the JSON that their own files name."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    folder = exported_folder(tmp_path, framework, CPUS, sharding="zero2", recompute="full")

    assert len(losses(output_of(command_of(folder), folder))) >= 2
