"""Short descriptions of networks, for tables."""

from collections.abc import Mapping
from typing import Any


def described(network: Mapping[str, Any]) -> str:
    """Return a description such as ``mlp 64-64`` or ``convnet 16, instance``, from the sizes that vary between runs."""
    hidden = "-".join(map(str, network.get("hidden", ())))
    width = f"{network['width']}" if "width" in network else ""
    blocks = f"{network['blocks']} blocks" if "blocks" in network else ""
    norm = str(network["norm"]) if network.get("norm", "none") != "none" else ""
    return " ".join([network["name"], ", ".join(filter(None, (hidden, width, blocks, norm)))]).strip()
