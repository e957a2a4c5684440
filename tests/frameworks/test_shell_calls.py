"""Scripts and functions that are called with arguments, and loops over these."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.frameworks.shell_calls import with_calls
from wattree.frameworks.shell_flags import (
    assumed_conditions,
    assumed_defaults,
    script_text,
    shell_flags,
)

LAUNCH = "torchrun pretrain_gpt.py --tp ${TP} --pp $PP $SP"
#: Name → a script that is called with arguments, and how another one calls it.
CALLED = {
    "places": (f'TP=$1\nPP=${{2:-4}}\nSP="${{@:3}}"\n{LAUNCH}', "bash called.sh 8 4 --sp"),
    "default": (f"SP=$3\nTP=$1\nPP=${{2:-4}}\n{LAUNCH} --sp", "NODES=2 bash ./called.sh 8"),
    "all": (
        'torchrun pretrain_gpt.py "$@"',
        "sh called.sh \\\n  --tp 8 --pp 4 --sp | tee a",
    ),
    "tenth": (
        f"TP=${{11}}\nPP=${{12:-${{PP:-4}}}}\nSP=${{10}}\n{LAUNCH}",
        "bash called.sh \\\n1 2 3 4 \\\n5 6 7 8 9 \\\n--sp 8",
    ),
    "shift": ('TP=$1; shift\nPP=$1\nshift 1\ntorchrun pretrain_gpt.py --tp $TP --pp $PP "$@"', ""),
    "case": (
        "TP=1\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --tp|-t) TP=$2; shift;;\n"
        '    -p)\n      PP="$2"\n      shift\n      ;;\n    --sp) SP=$1;;\n    *) exit 1;;\n'
        f"  esac\n  shift\ndone\n{LAUNCH}",
        "bash $DIR/called.sh --tp 8 -p 4 --sp",
    ),
    "getopts": (
        'while getopts "t:p:s" opt; do\n  case $opt in\n    t) TP=$OPTARG;;\n    p) PP=$OPTARG;;\n'
        f"    s) SP=--sp;;\n  esac\ndone\n{LAUNCH}",
        "srun bash called.sh -t 8 -p4 -s",
    ),
    "function": (
        f'run() {{\n  local TP=$1\n  PP="$2"\n  {LAUNCH} ${{@:3}}\n}}\nrun 8 4 --sp',
        "",
    ),
    "equals": (
        'while [ $# -gt 0 ]; do\n  case $1 in\n    t=*) TP="${1#*=}"; shift;;\n'
        f"    p=*) PP=${{1#*=}}; shift;;\n    *) SP=$1; shift;;\n  esac\ndone\n{LAUNCH}",
        'cd /a && NODES=2 bash "$(dirname "$0")/called.sh" t=8 p=4 --sp  # or; bash b.sh',
    ),
    "quoted": (
        'torchrun pretrain_gpt.py "$@"',
        "srun --mpi=pmix bash -c 'cd /a && bash called.sh --tp 8 --pp 4 --sp'",
    ),
    "named before": (
        f"TP=${{1:-1}}\nPP=$2\nSP=$3\n{LAUNCH}",
        'chmod +x "called.sh"\n[ -f "called.sh" ] || exit 1\nbash called.sh 8 4 --sp',
    ),
    "option": (
        'torchrun pretrain_gpt.py "$@"',
        'xpk workload create --name "$NAME" --command="set -e; \\\nexport A=\'1\'; \\\n'
        'bash scripts/called.sh --tp 8 --pp 4 --sp"',
    ),
    "within": (
        'torchrun pretrain_gpt.py "$@"',
        "start() {\n  bash called.sh --tp 8 --pp 4 --sp\n}\nstart\n",
    ),
    "sourced": ("TP=$1\nexport PP=$2", f"source called.sh 8 4\nSP=--sp\n{LAUNCH}"),
}


@pytest.mark.parametrize("name", CALLED)
def test_arguments_of_a_call_reach_what_it_calls(name: str, tmp_path: Path) -> None:
    """A script of a cluster often calls that of a framework, with the degrees as arguments."""
    text, call = CALLED[name]
    (tmp_path / "called.sh").write_text(text, encoding="utf-8")
    (tmp_path / "calls.sh").write_text(call or "bash called.sh 8 4 --sp", encoding="utf-8")
    path = tmp_path / ("called.sh" if name == "function" else "calls.sh")

    found = shell_flags(script_text(path))
    assert {"tp": "8", "pp": "4", "sp": True}.items() <= found.items()


@pytest.mark.parametrize("call", ["cd /a && run 8", "if ! run 8; then exit 1; fi"])
def test_flags_of_a_function_count_however_it_is_called(call: str, tmp_path: Path) -> None:
    """Where a call is not understood, the function still says what is trained."""
    path = tmp_path / "a.sh"
    path.write_text(f"run() {{\n  torchrun pretrain_gpt.py --pp 4 --tp $1\n}}\n{call}\n")
    assert shell_flags(script_text(path))["pp"] == "4"


def test_flags_of_two_calls_of_a_script_do_not_mix(tmp_path: Path) -> None:
    """A script that starts trainings one after another: the first counts."""
    (tmp_path / "b.sh").write_text("torchrun pretrain_gpt.py $@\n")
    path = tmp_path / "a.sh"
    path.write_text("bash b.sh --tp 4 --sp\nbash b.sh --tp 2 --pp 2\n")
    assert shell_flags(script_text(path)) == {"tp": "4", "sp": True}
    assert assumed_conditions(path) == [
        "bash b.sh --tp 4 --sp is called, not bash b.sh --tp 2 --pp 2"
    ]


def test_what_a_call_leaves_open_is_said(tmp_path: Path) -> None:
    """The first of a loop's values counts, the first of several calls, and defaults of options."""
    calls = "run() { torchrun pretrain_gpt.py --tp $1; }\nrun 2\nrun 4\n"
    loop = f"for PP in 4 2; do\n  {LAUNCH}\ndone"
    path = tmp_path / "a.sh"
    path.write_text(f'{calls}while [ -n "$1" ]; do case $1 in a) TP=2;; esac; done\n{loop}\n')

    assert shell_flags(script_text(path))["pp"] == "4"
    assert assumed_conditions(path) == [
        "PP is 4, the first of 4 2",
        "run 2 is called, not run 4",
        "the script is called without arguments",
    ]


def test_numbers_that_the_environment_may_replace_are_said(tmp_path: Path) -> None:
    """Not those of a variable that the script sets, nor what only says where processes are."""
    path = tmp_path / "a.sh"
    path.write_text(
        "NNODES=${NNODES:-4}\nTP=2\nexport PP=${PP:-3}\nPORT=${PORT:-6000}\nN=$((NNODES * 8))\n"
        "torchrun --nnodes $NNODES --nproc_per_node ${GPUS:-8} --node_rank ${RANK:-0} \\\n"
        "  --master_port $PORT pretrain_gpt.py --tp ${TP:-2} --pp $PP --gbs ${GBS:-64}\n"
    )
    words = "is {} where the environment does not set it"
    expected = {"NNODES": 4, "PP": 3, "GPUS": 8, "GBS": 64}
    assert assumed_defaults(path) == [f"{k} {words.format(v)}" for k, v in expected.items()]


@pytest.mark.timeout(60)  # squared in the blanks, a script of this size takes ten minutes
def test_blanks_without_end_are_read_in_one_pass(tmp_path: Path) -> None:
    """Nothing is tried again from every blank of a line."""
    script = tmp_path / "train.sh"
    script.write_text(f"set {' ' * 300_000}\ntorchrun pretrain_gpt.py --bf16\n")
    assert "--bf16" in with_calls(script)[0]
