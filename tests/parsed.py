"""Reads a page for the tests: a tree of its elements, strict about what is opened and closed."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


@dataclass
class Node:
    """An element; `inside` holds elements and texts in their order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    inside: list["Node | str"] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    @property
    def text(self) -> str:
        """All text inside, in one line."""
        parts = (part if isinstance(part, str) else part.text for part in self.inside)
        return " ".join("".join(parts).split())

    def walk(self) -> Iterator["Node"]:
        yield self
        for part in self.inside:
            if isinstance(part, Node):
                yield from part.walk()

    def all(self, tag: str, class_: str = "") -> list["Node"]:
        return [node for node in self.walk() if node.tag == tag and (not class_ or class_ in node.classes)]

    def one(self, tag: str, class_: str = "") -> "Node":
        found = self.all(tag, class_)
        assert len(found) == 1, f"{len(found)} <{tag}> of class {class_!r}, expected one"
        return found[0]

    def after(self, tag: str, text: str) -> "Node":
        """The element behind the one with this tag and text."""
        for node in self.walk():
            parts = [part for part in node.inside if isinstance(part, Node)]
            for first, second in itertools.pairwise(parts):
                if first.tag == tag and first.text == text:
                    return second
        raise AssertionError(f"no <{tag}> says {text!r}")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("")]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, {name: value or "" for name, value in attrs})
        assert len(node.attributes) == len(attrs), f"an attribute of <{tag}> is given twice"
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].inside.append(data)


def parse(html: str) -> Node:
    """The whole page; fails where elements do not nest."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.open[0]
