"""A Python file as text and tree, with replacements of single nodes: what is not replaced keeps its
formatting and comments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

# Stands for a statement that goes; `migrate` takes its line away.
DELETED = "\0"


class Source:
    """The text of a file; nodes of its tree have spans in it. Raises SyntaxError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        # Node -> its new text.
        self._replaced: dict[ast.AST, str] = {}

    def replace(self, node: ast.AST, text: str) -> None:
        """`text` stands for the node from here on."""
        self._replaced[node] = text

    def restore(self, node: ast.AST) -> None:
        """The node's own text stands again."""
        del self._replaced[node]

    def is_replaced(self, node: ast.AST) -> bool:
        """True for a node that has a new text."""
        return node in self._replaced

    def offset(self, line: int, column: int) -> int:
        """Characters before a position of the tree, whose columns count bytes of UTF-8."""
        content = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(content.encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> tuple[int, int]:
        """First character and the one behind the last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def render(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """The text of a node with all replacements in it."""
        if node in self._replaced:
            return self._replaced[node]
        start, end = self.span(node)
        pieces, at = [], start
        for child_start, child_end, text in sorted(self._within(node)):
            pieces += [self.text[at:child_start], text]
            at = child_end
        return "".join([*pieces, self.text[at:end]])

    def _within(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            if child in self._replaced:
                assert isinstance(child, ast.expr | ast.stmt | ast.keyword)
                yield (*self.span(child), self._replaced[child])
            else:
                yield from self._within(child)

    def indent(self, statement: ast.stmt) -> str:
        """The white space before a statement; what stands before it on its line if that is code."""
        line = self._lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def line_start(self, statement: ast.stmt) -> int:
        """First character of the statement's line, or of its first decorator's."""
        decorators = getattr(statement, "decorator_list", [])
        first: int = min([statement.lineno, *(item.lineno for item in decorators)])
        return self._starts[first - 1]

    def result(self, statements: dict[ast.stmt, str]) -> str:
        """The new file; `statements` has the lines that come before some statements."""
        edits = list(self._within(self.tree))
        edits += [(start, start, lines) for start, lines in self._before(statements)]
        return edited(self.text, edits)

    def _before(self, statements: dict[ast.stmt, str]) -> Iterator[tuple[int, str]]:
        for statement, lines in statements.items():
            yield self.line_start(statement), lines


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """A text with parts of it, from a character to one behind, replaced."""
    pieces, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def inside_texts(tree: ast.AST) -> set[int]:
    """The lines that begin within a text of several lines, which keep their spaces."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes)
    }
