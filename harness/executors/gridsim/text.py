"""Cuts the text of TTIR: strings hidden, brackets respected, locations resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

Value = str | int | bool | tuple[str, ...] | tuple[int, ...]
Place = TypeVar("Place")

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
LOCATION = re.compile(r"\s*\bloc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
OPENING, CLOSING = "<([{", ">)]}"
BRACKETS = re.escape(OPENING + CLOSING)


def hide(text: str) -> tuple[str, list[str]]:
    """Replace every string by its number, so that nothing inside one is taken for structure; arrows by one sign."""
    strings: list[str] = []

    def number(match: re.Match[str]) -> str:
        strings.append(match[1])
        return f"\x00{len(strings) - 1}\x00"

    return STRING.sub(number, text).replace("->", "→"), strings


def groups(pattern: str, text: str) -> tuple[str, ...]:
    """Match all of a text; TTIR that does not read as it should is an error that shows it."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"TTIR: expected {pattern}, got {text!r}")
    return match.groups()


def split(text: str, separator: str = ",") -> list[str]:
    """Split where no bracket is open."""
    if separator not in text:
        return [text.strip()] if text.strip() else []
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"[{BRACKETS}]|{separator}", text):
        if match[0] in OPENING:
            depth += 1
        elif match[0] in CLOSING:
            depth -= 1
        elif not depth:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _braces(text: str) -> list[tuple[int, int]]:
    """Find the outermost pairs of braces."""
    found, depth, start = [], 0, 0
    for match in re.finditer("[{}]", text):
        if match[0] == "{":
            start = start if depth else match.start()
            depth += 1
        else:
            depth -= 1
            if not depth:
                found.append((start, match.end()))
    return found


def without_braces(text: str) -> str:
    """Drop attribute dictionaries."""
    for start, end in reversed(_braces(text)):
        text = text[:start] + text[end:]
    return text.replace("<>", "")


def attributes(text: str, strings: list[str]) -> dict[str, Value]:
    """Read the attribute dictionaries of an operation."""
    found = {}
    for start, end in _braces(text):
        for part in split(text[start + 1 : end - 1]):
            key, _, value = part.partition(" = ")
            found[key.strip()] = attribute(value, strings) if value else True
    return found


def attribute(text: str, strings: list[str]) -> Value:
    """Read one attribute: a string, a number, a truth value, an array, or else its text."""
    text = text.strip()
    if text.startswith("\x00"):
        return strings[int(text.split("\x00")[1])]
    if text in ("true", "false"):
        return text == "true"
    if match := re.fullmatch(r"(-?\d+)(?: : \w+)?", text):
        return int(match[1])
    if match := re.fullmatch(r"array<\w+(?:: (.*))?>", text):
        return tuple(int(part) for part in re.findall(r"-?\d+", match[1] or ""))
    return text


def tail(text: str, where: Mapping[str, Place]) -> tuple[str, Place]:
    """Take the locations (and the comment on a block) off a line; its own is the last."""
    found = re.findall(r"loc\((#loc\d*|unknown)\)\s*$", text)
    plain = LOCATION.sub("", text.split("  //")[0]).strip()
    return plain, where[found[0] if found else "unknown"]


def locations(text: str, strings: list[str]) -> dict[str, tuple[str, int]]:
    """Resolve every alias to a file and a line of the kernel."""
    aliases = dict(ALIAS.findall(text))
    return {"unknown": ("?", 0)} | {name: _place(body, aliases, strings) for name, body in aliases.items()}


def _place(body: str, aliases: dict[str, str], strings: list[str]) -> tuple[str, int]:
    """Follow names and call sites to a place: the callee's, but the caller's where the callee is Triton's library."""
    if match := re.fullmatch(r"\x00(\d+)\x00:(\d+):\d+.*", body):
        return strings[int(match[1])], int(match[2])
    inner = [_place(aliases[name], aliases, strings) for name in re.findall(r"#loc\d*", body)]
    known = [place for place in inner if place[1]]
    own = [place for place in known if "/triton/language/" not in place[0]]
    return next(iter(own or known), ("?", 0))
