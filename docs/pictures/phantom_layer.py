"""Draw `phantom-layer.svg`: run it from anywhere, it writes beside itself.

On the left the weight that a phantom layer over four ranks stands for, on the right what a rank
does with its inputs.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1060, 470
FONT = "font-family='Helvetica, Arial, sans-serif'"
OWN, GHOST, VALUE, INK, SOFT = "#9cc3e0", "#f2c879", "#ffffff", "#1d2b36", "#5b6b78"
RANKS = 4


def rect(x: float, y: float, width: float, height: float, fill: str, *, radius: int = 0) -> str:
    """Return an outlined rectangle."""
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='{radius}' "
        f"fill='{fill}' stroke='{INK}' stroke-width='1.2'/>"
    )


def words(x: float, y: float, text: str, *, size: int = 13, color: str = INK) -> str:
    """Return a line of text, centered on x."""
    return (
        f"<text x='{x:g}' y='{y:g}' text-anchor='middle' font-size='{size}' "
        f"fill='{color}'>{escape(text)}</text>"
    )


def arrow(*points: tuple[float, float], dashed: bool = False) -> str:
    """Return a line through the points with a head at the last."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    dashes = " stroke-dasharray='5 4'" if dashed else ""
    return (
        f"<polyline points='{path}' fill='none' stroke='{INK}' stroke-width='1.4'{dashes} "
        "marker-end='url(#tip)'/>"
    )


def matrix(left: float, top: float, block: float) -> list[str]:
    """Return the dense weight by blocks: own ones full, the others a tall times a flat matrix."""
    parts = []
    for receiver in range(RANKS):
        for source in range(RANKS):
            x, y = left + source * block, top + receiver * block
            if receiver == source:
                parts += [
                    rect(x, y, block, block, OWN),
                    words(x + block / 2, y + block / 2 + 5, f"L{receiver}", size=15),
                ]
                continue
            parts += [
                rect(x, y, block, block, "#fbfcfd"),
                rect(x + 10, y + 12, 9, block - 24, GHOST),
                rect(x + 27, y + 12, block - 38, 9, GHOST),
                words(x + 46, y + 46, f"D{receiver}{source} C{source}", size=11, color=SOFT),
            ]
        parts.append(words(left - 30, top + (receiver + 0.5) * block + 5, f"rank {receiver}"))
    for source in range(RANKS):
        parts.append(words(left + (source + 0.5) * block, top - 10, f"y{source}"))
    return parts


def layer(left: float) -> list[str]:
    """Return what rank j does, forward in full and backward in dashed lines."""
    middle = left + 140
    return [
        rect(left, 215, 70, 40, VALUE, radius=16),
        words(left + 35, 240, "yj", size=15),
        words(left + 35, 274, "m x B", size=11, color=SOFT),
        # compress
        rect(middle, 120, 90, 40, GHOST),
        words(middle + 45, 145, "Cj yj", size=15),
        words(middle + 45, 112, "k x m", size=11, color=SOFT),
        arrow((left + 70, 228), (left + 104, 228), (left + 104, 140), (middle - 2, 140)),
        # local
        rect(middle, 310, 250, 40, OWN),
        words(middle + 125, 335, "Lj yj + bj", size=15),
        words(middle + 125, 370, "m x m: runs while ghosts travel", size=11, color=SOFT),
        arrow((left + 70, 242), (left + 104, 242), (left + 104, 330), (middle - 2, 330)),
        # exchange
        rect(middle + 130, 78, 34, 190, "#e3eef7"),
        words(middle + 147, 66, "all-gather of ghosts", size=12),
        words(middle + 147, 286, "(p − 1) k B elements sent", size=11, color=SOFT),
        arrow((middle + 90, 140), (middle + 128, 140)),
        *(
            arrow((middle + 164, y), (middle + 214, y))
            for y in (105, 140, 175)
        ),
        # decompress
        rect(middle + 216, 88, 120, 104, GHOST),
        words(middle + 276, 135, "sum over i of", size=13),
        words(middle + 276, 155, "Dji gi", size=15),
        words(middle + 276, 210, "m x (p − 1) k", size=11, color=SOFT),
        # sum
        rect(middle + 372, 215, 40, 40, VALUE, radius=20),
        words(middle + 392, 241, "+", size=19),
        arrow((middle + 336, 140), (middle + 392, 140), (middle + 392, 213)),
        arrow((middle + 250, 330), (middle + 392, 330), (middle + 392, 257)),
        arrow((middle + 412, 235), (middle + 440, 235)),
        words(middle + 456, 240, "zj", size=15),
        # backward
        arrow((middle + 130, 250), (middle + 60, 250), (middle + 60, 164), dashed=True),
        words(middle + 40, 218, "hj", size=13, color=SOFT),
        arrow((middle + 260, 230), (middle + 230, 230), (middle + 168, 230), dashed=True),
        words(middle + 276, 248, "Djiᵀ δj", size=13, color=SOFT),
    ]  # fmt: skip


def picture() -> str:
    """Return the whole drawing."""
    title = "A phantom layer: the weight it stands for, and what a rank computes and sends"
    head = (
        "<marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' markerHeight='8' "
        f"orient='auto'><path d='M0,0 L10,5 L0,10 z' fill='{INK}'/></marker>"
    )
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"width='{WIDTH}' height='{HEIGHT}' {FONT} role='img' aria-labelledby='title'>",
        f"<title id='title'>{title}</title>",
        f"<defs>{head}</defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fbfcfd'/>",
        words(245, 40, "the weight it stands for (p = 4)", size=15),
        *matrix(90, 80, 78),
        words(245, 420, "own blocks of full rank, all others of rank k", size=12, color=SOFT),
        words(735, 40, "rank j", size=15),
        *layer(450),
        words(
            735,
            420,
            "dashed: backward; the reduce-scatter brings each rank the gradient of its ghosts",
            size=12,
            color=SOFT,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("phantom-layer.svg").write_text(picture(), encoding="utf-8")
