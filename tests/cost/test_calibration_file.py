"""Files of constants: what they may say, all faults at once, and what lies beneath them."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.cost import SHIPPED_BASE, constant_lines, load_calibration, residual_lines
from wattree.errors import JobError
from wattree.hardware import load_device

SHIPPED = Path("src/wattree/cost/calibration.yaml")


def written(folder: Path, text: str) -> Path:
    """Return a file of `text`."""
    path = folder / "cal.yaml"
    path.write_text(text)
    return path


def test_a_file_lies_over_what_ships(tmp_path: Path) -> None:
    """What it does not name is as it was."""
    path = written(
        tmp_path,
        "base: shipped\nconstants:\n  device.h100-sxm-80gb.matmul.bf16: {value: 0.5, "
        "evidence: measured, source: ours}\n",
    )
    found, shipped = load_calibration(path), load_calibration()
    device = load_device("h100-sxm-80gb")

    assert found.device(device, "matmul.bf16") == 0.5
    assert found.evidence("device.h100-sxm-80gb.matmul.bf16") == "measured"
    assert found.general("kernel_s") == shipped.general("kernel_s")
    assert found.source == str(path)


def test_a_whole_file_needs_no_base(root: Path) -> None:
    """What `validate --fit` writes holds everything."""
    found = load_calibration(root / SHIPPED)

    assert found.constants == load_calibration().constants
    assert found.left_out == load_calibration().left_out


def test_lines_read_back(tmp_path: Path) -> None:
    """Writing and reading again changes nothing but the last digits."""
    shipped = load_calibration().constants
    path = written(tmp_path, "\n".join(["base: shipped", *constant_lines(shipped)]))
    found = load_calibration(path).constants

    assert found.keys() == shipped.keys()
    for name, constant in found.items():
        assert constant.value == pytest.approx(shipped[name].value, rel=1e-5)
        assert constant.evidence == shipped[name].evidence


def test_an_item_whose_meaning_changed_is_refused(tmp_path: Path) -> None:
    """`launch_s` was 5 us of C++, the time of another item now; `module_launch_s` is as it was."""
    lines = "base: shipped\nconstants:\n  family.megatron-core.{}: {{value: 6.0e-6}}\n"
    with pytest.raises(JobError, match=r"core\.launch_s: is of an earlier version; rename it"):
        load_calibration(written(tmp_path, lines.format("launch_s")))
    found = load_calibration(written(tmp_path, lines.format("module_launch_s")))

    assert found.family("megatron-core", "module_launch_s") == 6e-6


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    """Each with its key, and a guess at what was meant."""
    path = written(
        tmp_path,
        """
base: shiped
constant: 1
constants:
  device.mine.matmull.bf16: {value: 1}
  familly.pytorch.math: {value: 1}
  family.pytroch.math: {value: 1}
  general.kernel: {value: 1}
  device.mine.dispatch_s: {value: -1, sourse: x}
  device.mine.alpha_s: {value: 1, evidence: guessed}
  device.mine.attention: true
""",
    )
    with pytest.raises(JobError) as caught:
        load_calibration(path)
    told = "\n".join(caught.value.problems)

    for part in (
        "base: found 'shiped', expected 'shipped'",
        "constant: is unknown; did you mean 'constants'?",
        "device.mine.matmull.bf16: no constant 'matmull.bf16' of this kind; did you mean 'matmul",
        "familly.pytorch.math: found 'familly'; did you mean 'family'?",
        "no software family 'pytroch'; did you mean 'pytorch'?",
        "general.kernel: no constant 'kernel' of this kind; did you mean 'kernel_s'?",
        "device.mine.dispatch_s.value: found -1, expected a number from 0",
        "device.mine.dispatch_s.sourse: is unknown; did you mean 'source'?",
        "device.mine.alpha_s.evidence: found 'guessed'",
        "device.mine.attention.value: found None",
    ):
        assert part in told
    assert len(caught.value.problems) == 10


def test_part_of_a_file_asks_for_its_base(tmp_path: Path) -> None:
    """Else the first lookup of something else would fail, in the middle of a prediction."""
    path = written(tmp_path, "constants:\n  general.kernel_s: {value: 1e-6}\n")

    with pytest.raises(JobError, match=rf"base: is missing.*'base: {SHIPPED_BASE}'"):
        load_calibration(path)


def test_no_constants_at_all(tmp_path: Path) -> None:
    """For example, a job given as a calibration."""
    path = written(tmp_path, "model: gpt2\n")

    with pytest.raises(JobError, match=r"(?s)model: is unknown.*constants: is missing"):
        load_calibration(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "step_time_s.pair: -0.1",
            "spreads.step_time_s.pair: found -0.1, expected a number from 0",
        ),
        ("step_time_s.pair: wide", "spreads.step_time_s.pair: found 'wide', expected a number"),
        ("step_time_s.level.die: 0.1", "is of an earlier version; fit again"),
        ("step_time_s.network.slower.measured: 0.1", "is of an earlier version; fit again"),
        ("step_time_s.kind.langauge: 0.1", "is unknown; did you mean 'step_time_s.kind.language'?"),
    ],
)
def test_residuals_that_cannot_be(tmp_path: Path, line: str, problem: str) -> None:
    """A spread below nothing would make intervals that hold nothing."""
    body = f"base: shipped\nconstants: {{}}\nresiduals:\n  spreads:\n    {line}\n"
    with pytest.raises(JobError) as caught:
        load_calibration(written(tmp_path, body))

    assert any(problem in each for each in caught.value.problems)


def test_a_constant_with_a_negative_spread(tmp_path: Path) -> None:
    """Of a constant too."""
    line = "constants:\n  general.kernel_s: {value: 1e-6, spread: -0.2}\n"
    with pytest.raises(
        JobError, match=r"kernel_s\.spread: found -0.2, expected a number from 0 to 5"
    ):
        load_calibration(written(tmp_path, f"base: shipped\n{line}"))


def test_residuals_lie_over_those_that_ship(tmp_path: Path) -> None:
    """Classes that a file leaves out keep theirs, and lines read back."""
    shipped = load_calibration().residuals
    body = "base: shipped\nconstants: {}\nresiduals: {spreads: {step_time_s.pair: 0.125}}\n"
    found = load_calibration(written(tmp_path, body)).residuals

    assert found.spreads == {**shipped.spreads, "step_time_s.pair": 0.125}
    assert found.rows == shipped.rows
    lines = "\n".join(residual_lines(found))
    again = load_calibration(written(tmp_path, f"base: shipped\nconstants: {{}}\n{lines}\n"))
    assert again.residuals.spreads == pytest.approx(found.spreads, rel=1e-3)
