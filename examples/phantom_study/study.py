"""Phantom against tensor parallelism: trained here, simulated on up to 256 devices of Frontier.

`python examples/phantom_study/study.py` trains the small stacks (some minutes, needs the extra
`torch`), simulates the large ones, prints all tables and where the claim of half the energy holds,
and writes `measured.json`, `tables.md` and two pictures (with matplotlib) beside it.
`--stored` takes `measured.json` as it is, `--quick` that and a corner of the sweep, and writes
nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the modules beside it, however this one was loaded

import pictures  # noqa: E402
import tables  # noqa: E402
from simulated import Case, Simulator, cases, depth_cases  # noqa: E402
from trained import measured  # noqa: E402

from wattree.files import read_yaml, write_atomic  # noqa: E402

STUDY: Mapping[str, Any] = read_yaml(HERE / "study.yaml")
BEGIN, END = "<!-- tables: python examples/phantom_study/study.py -->", "<!-- end of tables -->"
#: What `--quick` simulates of the sweep.
CORNER = {"batches": [64], "widths": [16384, 65536], "ranks": [8, 64], "ghosts": [16]}


def page(found: Mapping[str, Any], swept: Sequence[Case], deep: Sequence[Case]) -> str:
    """Return all tables and the verdict as Markdown.

    Args:
        found: What was measured.
        swept: The simulated sweep.
        deep: That over depth.
    """
    trained, simulated = STUDY["trained"], STUDY["simulated"]
    ghosts = simulated["ghosts"][0]
    first = simulated["batches"][0]
    shown = [case for case in swept if case.ghosts == ghosts]
    others = [case for case in swept if case.batch == first and case not in shown]
    told = tables.verdict(
        swept, found["runs"], claim=STUDY["claim"], source=trained["base"]["source"]
    )
    load = ", ".join(f"{each:g}" for each in found["load"])
    parts = [
        "### Verdict\n\n```text\n" + "\n".join(told) + "\n```\n",
        "### Measured: steps to a loss\n\n" + tables.steps_table(found["runs"], trained["targets"]),
        f"### Measured: a step over two ranks\n\nTaken on {found['cores']} shared cores; "
        f"one-minute load between the groups of runs: {load}.\n\n"
        + tables.timed_table(found["runs"]),
        f"### Simulated: {simulated['node']}, {ghosts} ghosts\n\n"
        + tables.factors_table(shown, simulated["epoch"]),
        f"### Simulated: other numbers of ghosts, batch {first}\n\n"
        + tables.factors_table(others, simulated["epoch"]),
        "### Simulated: depth\n\n" + tables.factors_table(deep, simulated["epoch"]),
        "### Simulated: best ranks of each\n\n" + tables.best_table(swept),
    ]
    return "\n".join(parts)


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, print what came of it, and write page and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", action="store_true", help="train nothing: take measured.json")
    parser.add_argument("--quick", action="store_true", help="that, and simulate a corner alone")
    given = parser.parse_args(words)
    kept = HERE / "measured.json"
    if given.stored or given.quick:
        found = json.loads(kept.read_text(encoding="utf-8"))
    else:
        found = measured(STUDY["trained"])
        rows = ",\n".join(json.dumps(run) for run in found["runs"])
        head = json.dumps({key: value for key, value in found.items() if key != "runs"})
        write_atomic(kept, f'{head[:-1]}, "runs": [\n{rows}\n]}}\n')
    simulated = {**STUDY["simulated"], **(CORNER if given.quick else {})}
    simulator = Simulator(simulated)
    swept, deep = list(cases(simulated, simulator)), list(depth_cases(simulated, simulator))
    text = page(found, swept, deep)
    print(text)
    if given.quick:
        return
    tables_page = HERE / "tables.md"
    before, _, rest = tables_page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_atomic(tables_page, f"{before}{BEGIN}\n{text}{END}{after}")
    if find_spec("matplotlib") is None:
        print("matplotlib is not installed: no pictures")
        return
    base = STUDY["trained"]["base"]
    target = STUDY["trained"]["targets"][base["source"]][0]
    pictures.draw_measured(found["runs"], base, target, HERE / "measured.png")
    ghosts, node = simulated["ghosts"][0], simulated["node"]
    pictures.draw_simulated(swept, ghosts, STUDY["claim"], node, HERE / "simulated.png")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted: no file is half written", file=sys.stderr)
        sys.exit(130)
