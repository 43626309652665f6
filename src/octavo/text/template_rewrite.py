"""Puts counting into a parsed template, where the sandbox of jinja2 has no hook of its own."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.visitor import NodeTransformer


class Counting(NodeTransformer):
    """Puts counting filters around what is gone through, searched, sliced or joined.

    The filters of these names are the environment's to provide (sandbox.py).
    """

    ITEMS = "octavo.items"
    TEXT = "octavo.text"
    CONCAT = "octavo.concat"

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, self.ITEMS)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        if node.op in ("in", "notin"):
            node.expr = _filtered(node.expr, self.TEXT)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, self.TEXT)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), self.CONCAT)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
