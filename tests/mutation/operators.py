"""The mutants of a file: what cosmic-ray can change, and two kinds of deletion of our own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Keyword
from parso.tree import NodeOrLeaf


class RemoveKeywordArgument(Operator):
    """Call without one of the keyword arguments: the default takes its place."""

    def mutation_positions(self, node):
        for argument in self._found(node):
            yield argument.start_pos, argument.end_pos

    def mutate(self, node, index):
        place = node.children.index(self._found(node)[index])
        # In a list of arguments, the comma before goes, too, or that behind the first.
        start = max(place - 1, 0) if node.type == "arglist" else place
        del node.children[start : start + (2 if node.type == "arglist" else 1)]
        return node

    def _found(self, node):
        return [
            child
            for child in getattr(node, "children", ())
            if child.type == "argument" and child.children[1] == "=" and not _is_strict(child)
        ]

    @classmethod
    def examples(cls):
        return (Example("f(x, a=1, b=2)", "f(x, b=2)"),)


class DeleteStatement(Operator):
    """``pass`` instead of a call, an assignment or a raise."""

    KINDS = ("expr_stmt", "atom_expr", "raise_stmt")

    def mutation_positions(self, node):
        if node.type == "simple_stmt" and self._has_an_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node, index):
        old = node.children[0]
        node.children[0] = Keyword("pass", old.start_pos, old.get_first_leaf().prefix)
        return node

    def _has_an_effect(self, statement):
        if statement.type not in self.KINDS:
            return False
        declares = statement.children[1].type == "annassign" and "=" not in (
            statement.children[1].children
        )
        return not declares and statement.get_first_leaf().value != "__all__"

    @classmethod
    def examples(cls):
        return (Example("f(x)\n", "pass\n"),)


OWN = {operator.__name__: operator for operator in (RemoveKeywordArgument, DeleteStatement)}
SYNONYMS = tuple(
    f"ReplaceComparisonOperator_{one}_{other}"
    for pair in (("Eq", "Is"), ("NotEq", "IsNot"))
    for one, other in (pair, pair[::-1])
)
# These two need arguments: the names of the variables to change.
NEED_ARGUMENTS = ("core/VariableReplacer", "core/VariableInserter")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    ``line_text`` and ``number`` tell mutants apart without line numbers: the line where the change
    begins, and how many changes of the same operator to equal lines of the file come before.
    """

    file: str
    operator: str
    occurrence: int
    line: int
    line_text: str
    number: int

    def key(self, seed: int) -> str:
        """A place in a random order that stays the same when other lines change."""
        parts = (seed, self.file, self.operator, self.line_text, self.number)
        return sha256(repr(parts).encode()).hexdigest()

    def applied(self, text: str) -> str:
        """The text of the file with the change."""
        return MutationVisitor.mutate_code(text, operators()[self.operator](), self.occurrence)


@cache
def operators() -> dict[str, type[Operator]]:
    """Every operator by its name."""
    core = {
        name.removeprefix("core/"): cosmic_ray.plugins.get_operator(name)
        for name in cosmic_ray.plugins.operator_names()
        if name not in NEED_ARGUMENTS
    }
    return core | OWN


def mutants(text: str, file: str) -> Iterator[Mutant]:
    """Every mutant of the text of a file that could change what the code does.

    Left out are annotations that nothing reads, and changes of two kinds whose result only looks
    different: equality for identity, which agree on None, booleans, dtypes and names; and
    ``strict`` of ``zip``, an assertion that holds.
    """
    lines = text.splitlines()
    nodes = list(ast_nodes(get_ast(text)))
    annotated = {id(inner) for node in nodes for inner in _annotations(node)}
    asserted = {id(inner) for node in nodes for inner in _strict(node)}
    for name, operator in operators().items():
        if name in SYNONYMS:
            continue
        occurrence = 0
        seen: Counter[str] = Counter()
        for node in nodes:
            for (line, _), _ in operator().mutation_positions(node):
                if id(node) not in annotated and id(node) not in asserted:
                    line_text = lines[line - 1].strip()
                    yield Mutant(file, name, occurrence, line, line_text, seen[line_text])
                    seen[line_text] += 1
                occurrence += 1


def _strict(node: NodeOrLeaf) -> Iterator[NodeOrLeaf]:
    """The nodes of an argument ``strict=True``."""
    if node.type == "argument" and _is_strict(node):
        yield from ast_nodes(node)


def _is_strict(argument: NodeOrLeaf) -> bool:
    return argument.children[0].get_first_leaf().value == "strict"


def _annotations(node: NodeOrLeaf) -> Iterator[NodeOrLeaf]:
    """The nodes of the annotation of a parameter, a result or a local variable.

    Nothing reads these at run time. The fields of classes are checked by their annotations.
    """
    if node.type == "funcdef" and node.annotation is not None:
        yield from ast_nodes(node.annotation)
    if node.type == "param" and node.annotation is not None:
        yield from ast_nodes(node.annotation)
    if node.type == "annassign":
        scope = node.search_ancestor("funcdef", "classdef")
        if scope is not None and scope.type == "funcdef":
            yield from ast_nodes(node.children[1])
