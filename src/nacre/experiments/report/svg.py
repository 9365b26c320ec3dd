"""A figure's SVG as part of the page: names of its own, colours that follow light and dark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nacre.experiments.report.inks import VARIABLES

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _LINK)


def inline(svg: bytes, prefix: str, label: str) -> str:
    """The <svg> element alone. Ids get a prefix, since those of several figures would be the same."""
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name == f"{{{_LINK}}}href":
                element.set(name, value.replace("#", f"#{prefix}-", 1))
            elif name == "style":
                turned = _COLOUR.sub(lambda found: VARIABLES.get(found[0], found[0]), value)
                element.set(name, turned.replace("url(#", f"url(#{prefix}-"))
            elif value.startswith("url(#"):
                element.set(name, value.replace("url(#", f"url(#{prefix}-"))
            elif name in ("fill", "stroke"):
                element.set(name, VARIABLES.get(value, value))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")
