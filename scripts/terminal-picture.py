#!/usr/bin/env python3
"""Record a session of the `sandpod` command in local mode, and draw it as docs/images/terminal.svg.

Each command runs in a terminal of its own (a PTY), so the text and the colours are those of the command. Needs only
Python:

    scripts/terminal-picture.py target/debug/sandpod
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import tempfile
import termios
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "terminal.svg"
SESSION = [
    "sandpod run 'echo hello from user $(id -u)'",
    "sandpod create --id work --ttl 1h --quiet",
    "echo 'print(sum(range(10)))' | sandpod write work job.py",
    "sandpod exec work -- python3 job.py",
    "sandpod exec work -c 'curl -sS https://example.com'",
    "sandpod list",
    "sandpod cat work report.txt",
    "sandpod delete work",
]
COLUMNS, ROWS = 88, 40
FONT_SIZE, LINE_HEIGHT, LEFT, TOP = 14, 20, 20, 64
ADVANCE = 8.43
"""The width of a character of this size in the fonts below. `textLength` makes it exact in others."""
FONTS = "Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
BACKGROUND, BAR, TEXT, TYPED, PROMPT = "#1e2127", "#2b2f37", "#c8ccd4", "#ffffff", "#7ee787"
BUTTONS = ("#ff5f57", "#febc2e", "#28c840")
COLOURS = {1: "#ff7b72", 2: "#7ee787", 3: "#e3b341", 4: "#79c0ff", 5: "#d2a8ff", 6: "#76e3ea"}
ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")

Part = tuple[str, str, bool]
"""A text, its colour, and whether it is bold."""


def record(line: str, environment: dict[str, str], directory: str) -> str:
    """Return what a shell line prints to a terminal."""
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.chdir(directory)
        os.execve("/bin/sh", ["/bin/sh", "-c", line], environment)  # noqa: S606 - the session is a constant
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    os.waitpid(process, 0)
    return output.decode().replace("\r\n", "\n")


def parts(line: str) -> list[Part]:
    """Split a line of output at its changes of colour."""
    found: list[Part] = []
    colour, bold, end = TEXT, False, 0
    for match in ESCAPE.finditer(line):
        found.append((line[end : match.start()], colour, bold))
        end = match.end()
        for code in map(int, filter(None, match[1].split(";"))) if match[2] == "m" else ():
            bold = code == 1 or (bold and code != 0)
            colour = TEXT if code == 0 else COLOURS.get(code % 10 if code // 10 in (3, 9) else 0, colour)
    return [part for part in [*found, (line[end:], colour, bold)] if part[0]]


def session(command: Path) -> list[list[Part]]:
    """Run the session and return the lines of the terminal."""
    lines: list[list[Part]] = []
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "sandpod").symlink_to(command)
        environment = {"HOME": home, "TERM": "xterm-256color", "PATH": f"{home}:{os.environ['PATH']}"}
        for typed in SESSION:
            lines.append([("$ ", PROMPT, True), (typed, TYPED, False)])
            lines.extend(parts(line.rstrip()) for line in record(typed, environment, home).splitlines())
    return lines


def text(x: float, y: float, part: Part) -> str:
    """Return the element of one text."""
    content, colour, bold = part
    weight = ' font-weight="bold"' if bold else ""
    position = f'x="{x:.1f}" y="{y}" textLength="{len(content) * ADVANCE:.1f}"'
    return f'<text {position} fill="{colour}"{weight}>{escape(content, quote=False)}</text>'


def draw(lines: list[list[Part]]) -> str:
    """Return the SVG of a window with these lines."""
    width, height = int(2 * LEFT + COLUMNS * ADVANCE), TOP + len(lines) * LINE_HEIGHT
    label = "A terminal session of the sandpod command"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<path d="M0 36V8a8 8 0 0 1 8-8h{width - 16}a8 8 0 0 1 8 8v28z" fill="{BAR}"/>',
    ]
    svg += [f'<circle cx="{LEFT + 20 * n}" cy="18" r="6" fill="{colour}"/>' for n, colour in enumerate(BUTTONS)]
    svg.append(f'<g font-family="{FONTS}" font-size="{FONT_SIZE}" xml:space="preserve">')
    for number, line in enumerate(lines):
        column = 0
        for part in line:
            svg.append(text(LEFT + column * ADVANCE, TOP + number * LINE_HEIGHT, part))
            column += len(part[0])
    return "\n".join([*svg, "</g>", "</svg>", ""])


def main() -> None:
    """Draw the picture."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("command", type=Path, help="path of the command")
    arguments.add_argument("--to", type=Path, default=PICTURE, help="path of the picture")
    options = arguments.parse_args()
    options.to.write_text(draw(session(options.command.resolve())))


if __name__ == "__main__":
    main()
