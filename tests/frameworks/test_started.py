"""What exported files have to say so that programs start, and use the memory that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.frameworks import FRAMEWORKS, export_recipe, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.job import job_from_mapping

#: Framework → strategy, nodes, and what its files have to say for it.
STARTED = {
    "torchtitan": (
        {"dp": 8, "sharding": "zero3"},
        1,
        # 0.3 has no TOML; it replays steps unless it is told.
        (
            "--module wattree_config --config llama3_8b\n",
            "cuda_graphs\n",
            "chunks 8\n",
            "train.toml",
        ),
    ),
    "megatron-lm": (
        {"dp": 8, "sharding": "zero3"},
        1,
        # Rows of the table less one: the tokenizer of mock data adds one.
        ("=8\n", "--no-gradient-accumulation-fusion", "--init-model-with-", "-size 128255\n"),
    ),
    "megatron-bridge": ({"tp": 8, "sequence_parallel": True}, 1, ("MAX_CONNECTIONS=1\n",)),
    "accelerate": ({"dp": 16, "sharding": "zero1"}, 2, ('_launcher: "standard"', "_untested_")),
    "hf-trainer": ({"dp": 8, "sharding": "zero2"}, 1, ('"gradient_clipping": "auto"',)),
    "maxtext": (
        {"dp": 8, "sharding": "zero3"},
        1,
        ("MEM_FRACTION:-0.9}", "cudnn_flash_te", "max_segments_per_seq: 32"),
    ),
}


#: Node → queues of work with tensor parallelism: before Blackwell Megatron-LM refuses more than
#: one, also on AMD's devices with MXFP8.
QUEUES = {"dgx-h100": 1, "8x-mi355x": 1, "dgx-b200": 32}


@pytest.mark.parametrize("node", QUEUES)
def test_queues_of_work_are_those_that_megatron_accepts(node: str, tmp_path: Path) -> None:
    """By the architecture, not by the number formats that a device has."""
    text = _exported("megatron-lm", node, 1, {"tp": 8}, tmp_path)
    assert f"CUDA_DEVICE_MAX_CONNECTIONS={QUEUES[node]}\n" in text


@pytest.mark.parametrize("name", STARTED)
def test_files_start_as_they_are(name: str, tmp_path: Path) -> None:
    """Without these words a program refuses to start, or runs out of memory that is there."""
    strategy, nodes, words = STARTED[name]
    texts = _exported(name, "dgx-h100", nodes, strategy, tmp_path)
    assert [word for word in words if word not in texts] == []


def _exported(name: str, node: str, nodes: int, strategy: dict[str, object], folder: Path) -> str:
    """Return the texts of all files that are exported for a job."""
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"node": node, "nodes": nodes},
            "software": FRAMEWORKS[name].software[0],
            "strategy": strategy,
        }
    )
    export_recipe(job, name, folder / "run")
    return "".join(path.read_text() for path in sorted((folder / "run").iterdir()))


@pytest.mark.parametrize(
    ("length", "stated", "chunks"),
    [(8192, None, 8), (8190, None, 2), (8191, None, 1), (8190, 5, 5)],
)
def test_a_loss_has_the_chunks_that_are_predicted(
    length: int, stated: int | None, chunks: int, tmp_path: Path
) -> None:
    """All are as long (`ChunkedLossWrapper`); eight were predicted, and read, of any."""
    traits = {"loss_chunks": stated} if stated else {"fused_loss": True}
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": length, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "software": "torchtitan",
            "strategy": {"dp": 8, "sharding": "zero3"},
            "traits": traits,
        }
    )
    software = concrete_job(job).software
    assert chunks == (software.loss_chunks if software.fused_loss else 1)
    export_recipe(job, "torchtitan", tmp_path / "run")
    start = tmp_path / "run" / "launch.sh"
    assert f"--loss.num_chunks {chunks}\n" in start.read_text(encoding="utf-8")
    found = import_recipe(start, "torchtitan", node="dgx-h100", nodes=1).job["traits"]
    assert found.get("loss_chunks") == (None if chunks in {1, 8} else chunks)
    assert found["fused_loss"] is (chunks > 1)
