"""Small good files of kinds that the checkout has none of, made by the code that writes them."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.energy.synthetic import World, isolated, study
from tests.interchange.traces import SHAPE, collective, compute, node, receive, send, written
from tests.measure.profiles import machine
from wattree.energy.fit import fit_runs
from wattree.interchange import export_chakra
from wattree.interchange.schema import NodeType
from wattree.job import job_from_mapping
from wattree.trace.run_file import run_as_json

__all__ = [
    "ENVIRONMENTS",
    "energy_calibration_text",
    "journal_text",
    "machine",
    "own_trace",
    "runs",
    "traces",
    "write_partner",
]

#: What launchers set, a variable on a line.
ENVIRONMENTS: Sequence[bytes] = tuple(
    text.encode()
    for text in (
        "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node1\n"
        "MASTER_PORT=29501\n",
        "SLURM_PROCID=5\nSLURM_STEP_NUM_TASKS=8\nSLURM_LOCALID=1\n"
        "SLURM_STEP_TASKS_PER_NODE=4(x2)\nSLURM_STEP_NODELIST=gpu[007-008]\nSLURM_JOB_ID=1234\n"
        "SLURM_STEP_ID=0\n",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
        "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=job-17\n",
        "PMI_RANK=0\nPMI_SIZE=2\nMPI_LOCALRANKID=0\nMPI_LOCALNRANKS=2\n",
    )
)


def traces() -> Sequence[bytes]:
    """Return files of rank 0 of two, with every kind of node, that meet `partner` on rank 1."""
    with tempfile.TemporaryDirectory() as made:
        begin = [compute(1, 5), send(2, 1, after=[1], us=2), receive(3, 1)]
        whole = [
            *begin,
            collective(4, 1 << 20, after=[3], order=[2], us=7),
            node(5, NodeType.MEM_LOAD_NODE, tensor_size=4096, after=[1], us=1),
            compute(6, 3, num_ops=1000, tensor_size=64, after=[5], is_cpu_op=False),
        ]
        bare = [
            *begin,
            collective(4, 1 << 20, after=[3], involved_dim=("bool_list", [True])),
        ]
        found = []
        for name, nodes in (("whole", whole), ("bare", bare)):
            path = written(Path(made) / name, nodes) / "t.0.et"
            found += [path.read_bytes(), gzip.compress(path.read_bytes(), mtime=0)]
    return found


def write_partner(folder: Path) -> None:
    """Write the file of rank 1 next to one of rank 0."""
    nodes = [receive(1, 0), send(2, 0, after=[1], us=2), collective(3, 1 << 20, after=[2], us=7)]
    with tempfile.TemporaryDirectory() as made:
        place = written(Path(made) / "both", [compute(1, 1)], nodes)
        (folder / "t.1.et").write_bytes((place / "t.1.et").read_bytes())


def own_trace() -> bytes:
    """Return what an export of a job on one device writes."""
    alone = {
        "model": {"transformer": {**SHAPE, "layers": 1}},
        "data": {"sequence_length": 256, "global_batch": 2},
        "cluster": {"node": "workstation-rtx-3090"},
        "strategy": {"dp": 1},
    }
    with tempfile.TemporaryDirectory() as made:
        export_chakra(job_from_mapping(alone), Path(made) / "own")
        return next((Path(made) / "own").glob("*.0.et")).read_bytes()


def energy_calibration_text() -> bytes:
    """Return the file of a fit to synthetic runs."""
    from wattree.energy.calibration_file import write_energy_calibration

    world = World(seed=1, time_noise=0.01)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "energy.yaml"
        write_energy_calibration(fit_runs((*isolated(world), *study(world))), path)
        return path.read_bytes()


def runs() -> Sequence[bytes]:
    """Return runs of known answer, one of each activity."""
    found = {run.activity: run for run in (*isolated(World(seed=1)), *study(World(seed=1)))}
    return [json.dumps(run_as_json(run), indent=1).encode() for run in found.values()]


def journal_text() -> bytes:
    """Return a journal of a few measurements."""
    from wattree.measure.profile.journal import Journal, PointMeasurement
    from wattree.measure.profile.points import PointFamily, ProfilePoint

    with tempfile.TemporaryDirectory() as made:
        journal = Journal(Path(made) / "points.jsonl", machine())
        for number, kind in enumerate(PointFamily):
            point = ProfilePoint(kind=kind, name="a", rows=8, inner=16, columns=32)
            measured = PointMeasurement(wall_s=(0.1, 0.2), busy_s=(0.1, 0.1))
            journal.add(point, number % 3, measured)
        journal.skip(ProfilePoint(kind=PointFamily.COLLECTIVE, name="b", size_bytes=64), "no room")
        journal.note_resident(2.5e8)
        return journal.path.read_bytes()
