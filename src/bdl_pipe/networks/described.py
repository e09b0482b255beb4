"""A network in a few words, for tables."""

from collections.abc import Mapping
from typing import Any


def described(network: Mapping[str, Any]) -> str:
    """Write ``mlp 64-64``, ``convnet 16, instance``: the sizes that differ from run to run."""
    hidden = "-".join(map(str, network.get("hidden", ())))
    width = f"{network['width']}" if "width" in network else ""
    blocks = f"{network['blocks']} blocks" if "blocks" in network else ""
    norm = str(network["norm"]) if network.get("norm", "none") != "none" else ""
    return " ".join([network["name"], ", ".join(filter(None, (hidden, width, blocks, norm)))]).strip()
