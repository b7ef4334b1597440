#!/usr/bin/env python3
"""Draws the JSON of `stasis bench --json` (standard input) as an SVG image (standard output): the phases of a median
round, and the shared path beside the driver alone; or the stages of restores. `stasis bench --svg FILE` runs it."""
import json
import math
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, ROW = 960, 200, 120, 24
SPAN = WIDTH - LEFT - RIGHT
LIMIT = "#c5221f"
# Colour, legend and phases of each kind; phases not listed are of the last kind.
KINDS = [
    ("#2a6fbb", "data: mover", "data-room data-save data-commit data-free load-room data-load"),
    ("#d9822b", "control: driver", "gpu-control gpu-lock gpu-checkpoint gpu-restore gpu-unlock"),
    ("#3a9d5d", "program: gate and memory", "gate-close data-export data-return"),
    ("#9aa0a6", "everything else", ""),
]


def colour_of(phase):
    return next((colour for colour, _, phases in KINDS if phase in phases.split()), KINDS[-1][0])


def seconds(value):
    return "0" if value == 0 else f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


class Canvas:
    def __init__(self):
        self.body, self.y = [], 16

    def text(self, x, y, text, more=""):
        self.body.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>')

    def box(self, x, y, width, height, colour):
        self.body.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.7):.2f}" height="{height}" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, more):
        self.body.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>')

    def bars(self, head, rows, limit=None):
        """Draws rows of (name, start, length, colour, figure) in seconds, an axis, and `limit` as a line."""
        scale = max([start + length for _, start, length, _, _ in rows] + [limit or 0, 1e-6])
        self.text(20, self.y + 28, head, 'font-weight="bold"')
        self.y += 40
        top = self.y
        for name, start, length, colour, figure in rows:
            x, width = LEFT + start / scale * SPAN, length / scale * SPAN
            self.text(LEFT - 8, self.y + 13, name, 'text-anchor="end"')
            self.box(x, self.y + 2, width, 16, colour)
            self.text(x + max(width, 0.7) + 6, self.y + 13, figure, 'class="figure"')
            self.y += ROW
        if limit is not None:
            x = LEFT + limit / scale * SPAN
            self.line(x, top, x, self.y, f'stroke="{LIMIT}" stroke-dasharray="4 3"')
        self.line(LEFT, self.y, LEFT + SPAN, self.y, 'stroke="#9aa0a6"')
        step = 10 ** math.floor(math.log10(scale))
        step /= 5 if scale / step < 2 else 2 if scale / step < 4 else 1
        for i in range(int(scale / step * 1.0001) + 1):
            x = LEFT + i * step / scale * SPAN
            self.line(x, self.y, x, self.y + 4, 'stroke="#9aa0a6"')
            self.text(x, self.y + 16, seconds(i * step), 'class="figure" text-anchor="middle"')
        self.y += 20

    def finish(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y + 16}" '
                f'viewBox="0 0 {WIDTH} {self.y + 16}">\n'
                "<style>text{font:12px sans-serif;fill:#202124}.figure{fill:#5f6368}</style>\n"
                '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(self.body) + "\n</svg>\n")


def phase_rows(stats):
    look = stats["phases"][0]["seconds"]["median"]
    for phase in stats["phases"]:
        length = phase["seconds"]["median"]
        rate = f", {phase['bytes'] / length / 1e9:.1f} GB/s" if phase["bytes"] and length else ""
        yield phase["name"], phase["start_s"] + look, length, colour_of(phase["name"]), seconds(length) + rate


def comparison(found, verb):
    bars = [("limit", found["limit"][verb + "_s"], LIMIT)]
    for run in found["shared"]:
        which = f" ({run['allocations']} pieces)" if len(found["shared"]) > 1 else ""
        for name in ("warm", "cold"):
            label = "shared, " + ("warm" if name == "warm" else "first") + which
            bars.append((label, run[name][verb]["seconds"]["median"], KINDS[0][0]))
    for run in found["driver_alone"]:
        bars.append((f"driver alone ({run['huge_pages']})", run[verb]["driver_calls_s"]["median"], KINDS[1][0]))
    bars.append(("driver, bare context", found["control"][verb]["driver_calls_s"]["median"], KINDS[1][0]))
    return [(name, 0, length, colour, seconds(length)) for name, length, colour in bars]


STAGES = [("storage", KINDS[3][0]), ("cpu", KINDS[2][0]), ("gpu", KINDS[0][0]), ("command", KINDS[1][0]), ("first_answer", LIMIT)]


def draw_restores(found):
    """The report of `stasis bench --restore`: the stages of a median restore, for each path and source."""
    canvas = Canvas()
    gpu, driver = found["gpu"], found["driver"]
    canvas.text(20, 26, f"stasis bench --restore: {found['size_bytes'] / 2**30:.1f} GiB on GPU {gpu['index']}, {gpu['name']}",
                'font-weight="bold" style="font-size:16px"')
    canvas.text(20, 46, f"driver {driver['kind']} {driver['version']}; stages overlap"
                + ("" if found["times_mean_something"] else "; on the software GPU the times mean nothing"), 'class="figure"')
    canvas.y = 54
    for series in found["series"]:
        rows = [(name.replace("_", " "), 0, series[name]["median"], colour, seconds(series[name]["median"]))
                for name, colour in STAGES]
        canvas.bars(f"{series['path']}, {series['source']}", rows)
    return canvas.finish()


def main():
    found = json.load(sys.stdin)
    if "series" in found:
        print(draw_restores(found), end="")
        return
    canvas = Canvas()
    gpu, driver = found["gpu"], found["driver"]
    canvas.text(20, 26, f"stasis bench: {found['size_bytes'] / 2**30:.1f} GiB on GPU {gpu['index']}, {gpu['name']}",
                'font-weight="bold" style="font-size:16px"')
    canvas.text(20, 46, f"driver {driver['kind']} {driver['version']}, "
                f"transparent huge pages {found['machine']['huge_pages']}, {len(found['shared'][0]['rounds'])} warm rounds"
                + ("" if found["times_mean_something"] else "; on the software GPU the times mean nothing"), 'class="figure"')
    canvas.y = 54
    for i, (colour, legend, _) in enumerate([*KINDS, (LIMIT, "limit", "")]):
        canvas.box(20 + 185 * i, canvas.y + 4, 12, 12, colour)
        canvas.text(38 + 185 * i, canvas.y + 14, legend)
    canvas.y += ROW
    for verb in ("suspend", "resume"):
        canvas.bars(f"{verb.capitalize()}, warm, by phases", list(phase_rows(found["shared"][0]["warm"][verb])),
                    found["limit"][verb + "_s"])
    for verb in ("suspend", "resume"):
        canvas.bars(f"{verb.capitalize()}, beside the driver alone", comparison(found, verb))
    print(canvas.finish(), end="")


if __name__ == "__main__":
    main()
