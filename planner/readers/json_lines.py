"""Lines of the values in JSON text, for messages."""

import json
import re

from hardware.errors import Path

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+|[\[\]{},:\n]')


def json_lines(text: str) -> dict[Path, int]:
    """Line of each key path of valid JSON text, from 1: that of the key, or of the item in a list."""
    lines: dict[Path, int] = {(): 1}
    path: list[str | int] = []
    in_object: list[bool] = []
    line, key_next = 1, False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
            continue
        if token in "}]":
            in_object.pop()
            path.pop()
            key_next = False
            continue
        if token == ",":
            key_next = in_object[-1]
            if not key_next:
                path[-1] = int(path[-1]) + 1
            continue
        if token == ":":
            continue
        if key_next:
            path[-1] = json.loads(token)
            key_next = False
        lines.setdefault(tuple(path), line)
        if token in "{[":
            in_object.append(token == "{")
            path.append("" if token == "{" else 0)
            key_next = token == "{"
    return lines
