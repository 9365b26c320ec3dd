"""Methods of continual learning, one short file each."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from nacre.errors import NacreError
from nacre.lowrank import Start
from nacre.methods.acl import ACL
from nacre.methods.agem import AGEM
from nacre.methods.cacl import CACL
from nacre.methods.cacl_fixed import CACLFixed
from nacre.methods.cacl_st import CACLST
from nacre.methods.cpg import CPG
from nacre.methods.er import ER
from nacre.methods.ewc import EWC
from nacre.methods.finetune import Finetune
from nacre.methods.hat import HAT
from nacre.methods.joint import Joint
from nacre.methods.method import Knowledge, Method
from nacre.methods.packnet import PackNet
from nacre.methods.pae import PAE
from nacre.methods.piggyback import Piggyback
from nacre.methods.pnn import PNN
from nacre.methods.single import Single
from nacre.methods.ucb import UCB

# the one list: commands, records and the report know a method by what stands here
_KINDS: tuple[type[Any], ...] = (
    CACL,
    CACLST,
    CACLFixed,
    Single,
    Finetune,
    Joint,
    EWC,
    ER,
    AGEM,
    UCB,
    ACL,
    PackNet,
    Piggyback,
    HAT,
    PNN,
    PAE,
    CPG,
)
METHODS = {kind.name: kind for kind in _KINDS}


def method_from_json(data: Mapping[str, Any]) -> Any:
    """The method that a store or a record names.

    >>> method_from_json({"name": "single", "settings": {}})
    Single()
    """
    try:
        kind = METHODS[data["name"]]
        known = {field.name for field in fields(kind)}
        settings = {name: value for name, value in data["settings"].items() if name in known}
        if "start" in settings:
            settings["start"] = Start(**settings["start"])
        return kind(**settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"no method is {data!r}; the methods are {', '.join(METHODS)}") from error


def checked_method(method: Any) -> Any:
    """The method, refused if it is none; a user's own needs no base class."""
    parts = ("begin", "learn", "load")
    can = not isinstance(method, type) and all(callable(getattr(method, part, None)) for part in parts)
    if not (can and is_dataclass(method) and isinstance(getattr(method, "name", None), str)):  # a store says both
        known = ", ".join(f"{kind.__name__}()" for kind in METHODS.values())
        raise NacreError(
            f"a method is an object of a dataclass with a name, {', '.join(parts)}, such as {known}; got {method!r:.80}"
        )
    return method


__all__ = [
    "ACL",
    "AGEM",
    "CACL",
    "CACLST",
    "CPG",
    "ER",
    "EWC",
    "HAT",
    "METHODS",
    "PAE",
    "PNN",
    "UCB",
    "CACLFixed",
    "Finetune",
    "Joint",
    "Knowledge",
    "Method",
    "PackNet",
    "Piggyback",
    "Single",
    "checked_method",
    "method_from_json",
]
