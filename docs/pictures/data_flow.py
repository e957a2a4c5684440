"""Draw `data-flow.svg`: run it from anywhere, it writes beside itself.

Plain SVG text, so that the picture is reviewed like code. Solid outlines are values, filled boxes
are the packages that turn one value into the next.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1060, 500
FONT = "font-family='Helvetica, Arial, sans-serif'"
VALUE, STAGE, INK, SOFT = "#ffffff", "#e3eef7", "#1d2b36", "#5b6b78"


def box(x: int, y: int, width: int, title: str, note: str, *, is_value: bool) -> str:
    """Return a box of fixed height with a title and a smaller line below it."""
    fill, radius = (VALUE, 18) if is_value else (STAGE, 4)
    middle = x + width / 2
    return (
        f"<rect x='{x}' y='{y}' width='{width}' height='56' rx='{radius}' fill='{fill}' "
        f"stroke='{INK}' stroke-width='1.4'/>"
        f"<text x='{middle}' y='{y + 24}' text-anchor='middle' font-size='15' "
        f"font-weight='bold' fill='{INK}'>{escape(title)}</text>"
        f"<text x='{middle}' y='{y + 43}' text-anchor='middle' font-size='12' "
        f"fill='{SOFT}'>{escape(note)}</text>"
    )


def arrow(*points: tuple[int, int]) -> str:
    """Return a line through the points with a head at the last."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return (
        f"<polyline points='{path}' fill='none' stroke='{INK}' stroke-width='1.4' "
        "marker-end='url(#head)'/>"
    )


def label(x: int, y: int, words: str) -> str:
    """Return a line of small text."""
    return f"<text x='{x}' y='{y}' font-size='12' fill='{SOFT}'>{escape(words)}</text>"


def line() -> list[str]:
    """Return the way from a job to its result."""
    return [
        box(20, 120, 120, "job.yaml", "what, how, where", is_value=True),
        # model, strategy, cluster
        box(180, 30, 120, "capture", "name → operators", is_value=False),
        box(340, 30, 140, "ModelGraph", "sizes symbolic", is_value=True),
        box(180, 120, 120, "job", "presets or a tree", is_value=False),
        box(340, 120, 140, "Strategy", "choices per module", is_value=True),
        box(180, 210, 120, "hardware", "catalog, files", is_value=False),
        box(340, 210, 140, "Cluster", "nodes, fabric, site", is_value=True),
        arrow((140, 140), (160, 140), (160, 58), (178, 58)),
        arrow((140, 148), (178, 148)),
        arrow((140, 156), (160, 156), (160, 238), (178, 238)),
        arrow((300, 58), (338, 58)),
        arrow((300, 148), (338, 148)),
        arrow((300, 238), (338, 238)),
        # compiler
        box(530, 120, 130, "compiler", "layouts → tasks", is_value=False),
        arrow((480, 58), (505, 58), (505, 136), (528, 136)),
        arrow((480, 148), (528, 148)),
        arrow((480, 238), (505, 238), (505, 160), (528, 160)),
        box(530, 300, 130, "cost", "time, traffic", is_value=False),
        arrow((595, 300), (595, 178)),
        box(340, 300, 140, "Calibration", "named constants", is_value=True),
        arrow((480, 328), (528, 328)),
        # play
        box(700, 120, 150, "ExecutionGraph", "arrays, ranks folded", is_value=True),
        arrow((660, 148), (698, 148)),
        box(890, 120, 150, "sim", "discrete events", is_value=False),
        arrow((850, 148), (888, 148)),
        box(890, 210, 150, "Trace", "start, end, memory", is_value=True),
        arrow((965, 176), (965, 208)),
        box(700, 210, 150, "energy", "watts, joules, PUE", is_value=False),
        arrow((890, 238), (852, 238)),
        box(700, 300, 150, "Result", "figures + evidence", is_value=True),
        arrow((775, 266), (775, 298)),
        arrow((965, 266), (965, 328), (852, 328)),
        box(890, 390, 150, "report", "text, JSON, Perfetto", is_value=False),
        arrow((850, 340), (870, 340), (870, 418), (888, 418)),
    ]


def loops() -> list[str]:
    """Return what lies outside the line, and what shapes mean."""
    return [
        box(160, 390, 140, "measured rows", "published runs", is_value=True),
        box(340, 390, 140, "validation", "compare, fit", is_value=False),
        arrow((300, 418), (338, 418)),
        arrow((410, 390), (410, 358)),
        arrow((700, 346), (680, 346), (680, 418), (482, 418)),
        label(500, 436, "predictions to compare with"),
        label(419, 379, "fitted"),
        box(530, 30, 320, "search", "drives the whole line for many strategies", is_value=False),
        arrow((595, 86), (595, 118)),
        label(604, 107, "screen, then simulate"),
        label(20, 484, "round: a value of a named type, printed, saved and tested alone"),
        label(550, 484, "square: a package; the package predict joins them into one call"),
    ]


def picture() -> str:
    """Return the whole drawing."""
    title = (
        "How data flows: a job names model, strategy and cluster; they are compiled, played and "
        "reported"
    )
    head = (
        "<marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' markerHeight='8' "
        f"orient='auto'><path d='M0,0 L10,5 L0,10 z' fill='{INK}'/></marker>"
    )
    opening = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"width='{WIDTH}' height='{HEIGHT}' {FONT} role='img' aria-labelledby='title'>"
    )
    parts = [
        opening,
        f"<title id='title'>{title}</title>",
        f"<defs>{head}</defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fbfcfd'/>",
        *line(),
        *loops(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("data-flow.svg").write_text(picture(), encoding="utf-8")
