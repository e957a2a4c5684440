"""A Python function as the model of a job: named, with arguments and inputs; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError, ModelError
from wattree.job import Job, job_from_mapping, load_job, names_module, read_declaration

PLACE = {"node": "dgx-h100"}


def job(model: Any, **data: Any) -> Job:
    """Return a job of a model."""
    mapping = {"model": model, "data": {"global_batch": 8, **data}, "cluster": PLACE}
    return job_from_mapping(mapping, "job.yaml", folder=Path("jobs"))


def problem(model: Any) -> str:
    """Return the only thing that is wrong."""
    with pytest.raises(JobError) as caught:
        job(model)
    (line,) = caught.value.problems
    return line


def test_a_file_and_a_function() -> None:
    """Paths start in the folder of the job; no sequence length is asked for."""
    source = job("nets/mine.py:make").model.module

    assert source is not None
    assert source.file == Path("jobs/nets/mine.py")
    assert (source.package, source.function) == (None, "make")
    assert source.inputs is None
    assert not job("nets/mine.py:make").data.has_sequence


def test_a_package_and_a_function() -> None:
    """Anything that can be imported."""
    source = job("nets.vision.resnet:resnet50").model.module

    assert source is not None
    assert (source.file, source.package) == (None, "nets.vision.resnet")
    assert source.function == "resnet50"


def test_arguments_inputs_and_loss() -> None:
    """The long form."""
    source = job(
        {
            "module": "mine.py:build",
            "arguments": {"width": 64},
            "inputs": {"x": "float32[batch, 3, 2*seq]", "ids": "int64[batch] < 32_000"},
            "loss": "none",
        },
        sequence_length=7,
    ).model.module

    assert source is not None
    assert isinstance(source.inputs, dict)
    assert source.arguments == {"width": 64}
    assert source.loss == "none"
    assert source.inputs["x"].shape(batch=2, sequence=7) == (2, 3, 14)
    assert source.inputs["ids"].below == 32_000


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "mine.py",
            "model: found 'mine.py', expected the function in it, too, such as mine.py:build",
        ),
        (
            {"module": "mine.py"},
            "model.module: found 'mine.py', expected file.py:build or package.module:build",
        ),
        (
            {"name": "mine.py:build"},
            "model.name: found 'mine.py:build', expected it under 'module': it names Python code",
        ),
        (
            {"name": "gpt2", "inputs": ["float32[batch]"]},
            "model.inputs: only a model given by 'module' has it",
        ),
        (
            {"name": "gpt2", "module": "mine.py:build"},
            "model: found name and module, expected exactly one of name, transformer, ffn, module",
        ),
        (
            {"module": "mine.py:build", "inputs": ["float23[batch]"]},
            "model.inputs.0: found 'float23[batch]': unknown type 'float23'; did you mean "
            "'float32'? known: float32, float64, float16, bfloat16, complex64, complex128, int64, "
            "int32, int16, int8, uint8, bool",
        ),
        (
            {"module": "mine.py:build", "inputs": ["float32 batch"]},
            "model.inputs.0: found 'float32 batch', expected a tensor such as "
            "'float32[batch, 3, 224, 224]' or 'int64[batch, seq]'",
        ),
    ],
)
def test_what_is_wrong_is_said(model: Any, expected: str) -> None:
    """Where, what was found, what was expected."""
    assert problem(model) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float32[batch, x]", r"'x' is no dim, expected a whole number, batch, seq, or a product"),
        ("float32[batch, 0]", r"'0' is no dim"),
        ("float32[batch] < 5", r"only whole numbers have an upper bound"),
        ("int64[batch] < many", r"'many' is no upper bound"),
    ],
)
def test_a_tensor_that_cannot_be_declared(text: str, message: str) -> None:
    """The part that is wrong is named."""
    with pytest.raises(ModelError, match=message):
        read_declaration(text)


def test_a_declared_sequence_needs_a_length() -> None:
    """There is no default that means anything."""
    with pytest.raises(ModelError, match=r"data\.sequence_length is missing"):
        read_declaration("int64[batch, seq]").shape(batch=2, sequence=None)


@pytest.mark.parametrize(
    ("text", "is_code"),
    [
        *(("mine.py:build", True), ("../up/mine.py:build", True), ("pack.mod:build", True)),
        *(("mine.py", False), ("config.json", False), ("config.json:build", False)),
        *(("trace.et:build", False), ("job.yaml:build", False), ("llama-3.1-8b", False)),
        *(("pack.mod", False), ("mine.py:", False), ("mine.py:a.b", False), ("a/b:c", False)),
    ],
)
def test_which_names_run_code(text: str, is_code: bool) -> None:  # noqa: FBT001
    """Only a function in a Python file or package; data by whatever name does not."""
    assert names_module(text) == is_code


def test_a_neighbours_python_is_refused(tmp_path: Path) -> None:
    """Who simulates a job has named its file, not what is in those of its neighbours."""
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    (tmp_path / "other.yaml").write_text(
        "model: mine.py:build\ndata: {global_batch: 8}\ncluster: {node: dgx-h100}\n"
        "strategy: {preset: ddp, dp: 4}\n"
    )
    (tmp_path / "job.yaml").write_text(
        "model: gpt2\ndata: {sequence_length: 64, global_batch: 8}\ncluster: {node: dgx-h100}\n"
        "strategy: {preset: ddp, dp: 4}\nplace: {devices: 0-3}\n"
        "neighbours: [{job: other.yaml, devices: 4-7}]\n"
    )

    with pytest.raises(JobError, match=r"a neighbour's Python is not run"):
        load_job(tmp_path / "job.yaml")


def test_reading_a_job_runs_nothing(tmp_path: Path) -> None:
    """Python runs where the model is needed, not where a file is read."""
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    file = tmp_path / "job.yaml"
    file.write_text("model: mine.py:build\ndata: {global_batch: 8}\ncluster: {node: dgx-h100}\n")

    assert load_job(file).model.module is not None
