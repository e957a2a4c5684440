"""The rules that tests/conftest.py adds: no silent skip in CI, and golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
INI = """
[pytest]
markers =
    gpu
    root
    shared
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return an empty test suite under the same conftest, in CI, run in this process."""
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makeini(INI)
    monkeypatch.setenv("CI", "true")
    return pytester


SKIPS = """
import pytest

def test_skips_itself():
    pytest.skip("no orchestra")
"""


def test_a_skip_fails_in_ci(inner: pytest.Pytester) -> None:
    """A package that CI forgot to install must not turn its tests off."""
    inner.makepyfile(SKIPS)

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*was skipped in CI (*no orchestra*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_skip_fails_in_ci_in_a_worker_too(inner: pytest.Pytester) -> None:
    """CI runs the tests in several processes; what they report passes through another one."""
    pytest.importorskip("xdist")
    inner.makepyfile(SKIPS)

    result = inner.runpytest_subprocess("-p", "no:randomly", "--numprocesses", "1")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*was skipped in CI (*no orchestra*"])


def test_a_skip_is_a_skip_elsewhere(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a laptop without a part, the rest still counts."""
    monkeypatch.delenv("CI")
    inner.makepyfile(SKIPS)

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_skipped_module_stops_ci(inner: pytest.Pytester) -> None:
    """`importorskip` at the top of a file would hide all of its tests at once."""
    inner.makepyfile("import pytest\npytest.importorskip('no_such_package')\ndef test_a(): pass")

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("marker", ["gpu", "root", "shared"])
def test_an_excused_skip_passes_in_ci(inner: pytest.Pytester, marker: str) -> None:
    """CI has no accelerator, may not be root, and a public clone has no reference data."""
    inner.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_a(): pytest.skip('none')")

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK


def test_an_expected_failure_is_no_skip(inner: pytest.Pytester) -> None:
    """Pytest reports both alike; only one of them hides a check."""
    inner.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_a(): assert False")

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK


def test_absent_reference_data_is_an_excused_skip(inner: pytest.Pytester) -> None:
    """The fixture marks the tests that use it; no one has to remember the marker."""
    inner.makepyfile("def test_a(shared): pass")

    result = inner.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK


GOLDEN = """
def test_a(golden):
    golden.check("greeting.txt", "hello\\n")
"""


def test_a_golden_file_is_compared(inner: pytest.Pytester) -> None:
    """A missing or different text fails; the option writes it; then it passes."""
    inner.makepyfile(GOLDEN)
    stored = inner.path / "golden" / "greeting.txt"

    inner.runpytest_inprocess("-p", "no:randomly").assert_outcomes(failed=1)
    inner.runpytest_inprocess("-p", "no:randomly", "--update-golden").assert_outcomes(passed=1)
    inner.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=1)
    stored.write_text("goodbye\n")
    inner.runpytest_inprocess("-p", "no:randomly").assert_outcomes(failed=1)
