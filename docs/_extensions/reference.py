"""Puts tables into pages, and makes links of options and public names, wherever they stand as code."""

from __future__ import annotations

import re

import tables
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

OPTION = re.compile(r"^option-(\w+)$")
Places = dict[str, tuple[str, str]]
"""The page and the place on it, by name."""


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the tables that a page asks for into it, before it is read."""
    source[0] = tables.generated(source[0])


def places(env: BuildEnvironment) -> Places:
    """Return where options and public names are described; a short name only if it is one thing's."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, entry in env.domains.python_domain.objects.items():
        if not entry.aliased and entry.objtype not in {"attribute", "method", "property"}:
            for each in {name, name.rpartition(".")[2]}:
                found.setdefault(each, set()).add((entry.docname, entry.node_id))
    for label, (page, place) in env.domains.standard_domain.anonlabels.items():
        if option := OPTION.match(label):
            found[option[1]] = {(page, place)}
    return {name: next(iter(where)) for name, where in found.items() if len(where) == 1}


def join_overloads(app: Sphinx, document: nodes.document) -> None:
    """Put the signatures of a method, which were described one by one, above its one text."""
    for description in list(document.findall(addnodes.desc)):
        after = description.next_node(descend=False, siblings=True)
        *signatures, content = description.children
        if description["no-index"] and not content.children and isinstance(after, addnodes.desc):
            after[:0] = signatures
            description.parent.remove(description)


def link_names(app: Sphinx, document: nodes.document, page: str) -> None:
    """Make a link of each name that is known, the first time that it stands in a section."""
    known = places(app.env)
    seen: set[tuple[nodes.Node | None, str]] = set()
    for literal in list(document.findall(nodes.literal)):
        name = literal.astext()
        if name not in known or any(isinstance(each, NO_LINKS) for each in parents(literal)):
            continue
        section = next(
            (each for each in parents(literal) if isinstance(each, nodes.section | addnodes.desc)), None
        )
        there, place = known[name]
        own = isinstance(section, nodes.section | addnodes.desc) and place in own_ids(section)
        if (section, name) in seen or (there == page and own):
            continue
        seen.add((section, name))
        literal.replace_self(make_refnode(app.builder, page, there, place, literal.deepcopy()))


NO_LINKS = (nodes.title, nodes.reference, addnodes.desc_signature, addnodes.pending_xref)


def parents(node: nodes.Node) -> list[nodes.Node]:
    """Return all that `node` stands in, the nearest first."""
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def own_ids(node: nodes.Element) -> list[str]:
    """Return the places that a section or a description is."""
    signatures = [each for each in node.children if isinstance(each, addnodes.desc_signature)]
    return [*node["ids"], *(place for each in signatures for place in each["ids"])]


def type_of_a_signature(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """Return a link to a type that is public under another module, and the plain name of what is not ours."""
    if node.get("refdomain") != "py" or node.get("reftype") not in {"class", "obj", "exc"}:
        return None
    name = str(node["reftarget"]).rpartition(".")[2]
    found = places(env).get(name)
    return make_refnode(app.builder, node["refdoc"], *found, shown) if found else shown


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("source-read", fill_in, priority=400)  # before the names of files are shown
    app.connect("doctree-read", join_overloads)
    app.connect("doctree-resolved", link_names)
    app.connect("missing-reference", type_of_a_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
