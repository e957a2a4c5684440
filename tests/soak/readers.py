"""Every reader of what users write, and what comes behind them, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.soak import beyond, draws, handed_over, reading
from tests.soak.reader import ROOT, Reader, files, workplace, written

__all__ = ["READERS", "ROOT", "Reader", "workplace"]

_CATALOG = ROOT / "src" / "wattree" / "hardware" / "catalog"
_TOPOLOGIES = ROOT / "tests" / "hardware" / "topology_files"
_CONFIGS = files("validation/models/config/*/config.json")
_JOBS = ("examples/*.yaml",)
#: Frameworks, and the files of an exported folder that are read again.
_RECIPES = (
    ("accelerate", "accelerate.yaml"),
    ("accelerate", "launch.sh"),
    ("deepspeed", "ds_config.json"),
    ("hf-trainer", "launch.sh"),
    ("hf-trainer", "trainer.yaml"),
    ("maxtext", "maxtext.yml"),
    ("megatron-bridge", "overrides.yaml"),
    ("megatron-lm", "launch.sh"),
    ("torchtitan", "launch.sh"),
    ("torchtitan", "train.toml"),
)
READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("job", reading.job, files(*_JOBS), schema=reading.job_schema, weight=4),
        Reader(
            "simulated",
            beyond.simulated,
            files(*_JOBS),
            schema=reading.job_schema,
            varied=0.9,
            limit_s=600.0,
        ),
        Reader(
            "study",
            reading.study,
            files("examples/design/*.yaml"),
            file="design/input.yaml",
            schema=reading.study_schema,
            weight=2,
        ),
        Reader(
            "queue",
            reading.queue,
            files("examples/queue/*.yaml"),
            file="queue/input.yaml",
            schema=reading.queue_schema,
        ),
        Reader("device", reading.hardware("device"), files("devices/*.yaml", root=_CATALOG)),
        Reader("node", reading.hardware("node"), files("nodes/*.yaml", root=_CATALOG), weight=2),
        Reader("fabric", reading.hardware("fabric"), files("fabrics/*.yaml", root=_CATALOG)),
        Reader("site", reading.hardware("site"), files("sites/*.yaml", root=_CATALOG)),
        Reader(
            "topology",
            reading.topology,
            files("*.xml", "*.txt", root=_TOPOLOGIES),
            is_document=False,
            weight=2,
        ),
        Reader("calibration", reading.calibration, reading.calibration_seeds),
        Reader(
            "energy-calibration",
            reading.energy_calibration,
            reading.energy_calibration_seeds,
            weight=0.2,
        ),
        Reader("hourly", reading.hourly, reading.hourly_seeds, is_document=False),
        Reader(
            "rows", reading.rows, reading.rows_seeds, is_document=False, draw=draws.rows, weight=2
        ),
        Reader(
            "validated",
            reading.validated,
            reading.rows_seeds,
            is_document=False,
            draw=draws.rows,
            weight=0.3,
            limit_s=600.0,
        ),
        Reader("run", reading.run, files("validation/runs/*.json"), file="input.json"),
        Reader("meter", reading.meter, reading.meter_seeds, is_document=False),
        Reader(
            "journal", reading.journal, reading.journal_seeds, file="input.jsonl", is_document=False
        ),
        Reader(
            "config",
            reading.config,
            files("validation/models/config/*/config.json"),
            "input.json",
            weight=2,
        ),
        Reader("graph", reading.graph, reading.graph_seeds, file="input.json", weight=0.5),
        Reader(
            "trace",
            reading.trace,
            reading.trace_seeds,
            file="trace/t.0.et",
            is_document=False,
            draw=draws.trace,
            weight=3,
        ),
        Reader(
            "own-trace",
            reading.own_trace,
            reading.own_trace_seeds,
            file="own/t.0.et",
            is_document=False,
            draw=draws.trace,
        ),
        Reader("groups", reading.groups, written('{"1": [0, 1], "2": [2, 3]}'), file="input.json"),
        Reader(
            "formula",
            reading.formula,
            written("a*2 + min(b, 3)", "sqrt(width)/log2(a)**2", "-ceil(a/3) - floor(1.5e9)"),
            file="input.txt",
            is_document=False,
            draw=draws.formula,
        ),
        Reader(
            "quantity",
            reading.quantity,
            written("bytes|80 GiB", "s|1,000.5 ms", "w|4e2 W", "usd_per_j|0.1 USD/kWh"),
            file="input.txt",
            is_document=False,
        ),
        Reader(
            "declaration",
            reading.declaration,
            written("float32[batch, 3, 224, 224]", "int64[2*batch, seq] < 32_000"),
            file="input.txt",
            is_document=False,
        ),
        Reader(
            "slot",
            reading.slot,
            written("F0 F1 B0 I0 W0 F10@1"),
            file="input.txt",
            is_document=False,
            weight=0.5,
        ),
        Reader(
            "environment",
            reading.environment,
            reading.environments,
            file="input.txt",
            is_document=False,
        ),
        Reader(
            "trial",
            reading.trial,
            written(json.dumps({"folder": "runs", "seconds": 2.0, "least_steps": 3})),
            file="input.json",
            weight=0.5,
        ),
        # What other programs made, and what the page is asked.
        *(
            Reader(
                f"{name}-{file.rpartition('.')[0]}",
                handed_over.recipe(name),
                handed_over.recipe_seeds(name, file),
                file=f"{name}/{file}",
                is_document=file.endswith(("json", "yaml", "yml")),
                weight=0.5,
            )
            for name, file in _RECIPES
        ),
        Reader(
            "llm-foundry",
            handed_over.recipe("llm-foundry"),
            handed_over.foundry_seeds,
            weight=0.5,
        ),
        Reader(
            "torchtune",
            handed_over.recipe("torchtune"),
            handed_over.torchtune_seeds,
            weight=0.5,
        ),
        Reader("traced", handed_over.traced, handed_over.traced_seeds, file="traced/rank.json"),
        Reader("own-runs", handed_over.own_runs, handed_over.own_runs_seeds, weight=0.5),
        Reader("result", handed_over.result, handed_over.result_seeds, file="input.json"),
        Reader(
            "request",
            handed_over.request,
            handed_over.requests,
            file="input.txt",
            is_document=False,
            draw=handed_over.drawn_request,
        ),
        # What comes behind them.
        Reader("estimated", beyond.estimated, files(*_JOBS), schema=reading.job_schema, varied=0.9),
        Reader("calibrated", beyond.calibrated, reading.calibration_seeds, varied=0.8),
        Reader("on-node", beyond.on_node, files("nodes/dgx-*.yaml", root=_CATALOG), varied=0.8),
        Reader(
            "configured",
            beyond.configured,
            files("validation/models/config/*/config.json"),
            file="input.json",
            varied=0.7,
        ),
        Reader(
            "priced",
            beyond.hourly,
            reading.hourly_seeds,
            file="input.csv",
            is_document=False,
            weight=0.5,
        ),
        Reader("designed", beyond.designed, reading.small_study, varied=0.8, weight=0.3),
        Reader("fitted", beyond.fitted, reading.run_seeds, file="input.json", varied=0.9),
        Reader(
            "compared",
            beyond.compared,
            reading.run_seeds,
            file="input.json",
            varied=0.9,
            weight=0.1,
            limit_s=600.0,
        ),
        Reader(
            "forecast", beyond.forecast, reading.energy_calibration_seeds, varied=0.8, weight=0.5
        ),
        Reader(
            "command",
            beyond.command,
            reading.commands,
            file="commands/input.txt",
            is_document=False,
            draw=beyond.drawn_command,
            limit_s=600.0,
        ),
    )
}
