"""Classify unfamiliar sets as near a data set or far from it.

OpenOOD (Yang et al. 2022; version 1.5, Zhang et al. 2023) calls a set near if its rows look similar but have another
meaning, and far if the kind of picture differs, too. For MNIST, Fashion-MNIST and NotMNIST are near, and Textures,
CIFAR-10, Tiny ImageNet and Places365 are far; for CIFAR-10, CIFAR-100 and Tiny ImageNet are near, and for CIFAR-100
likewise. OpenOOD has no benchmark for Fashion-MNIST: MNIST is near to it, since Fashion-MNIST is near to MNIST. Classes
that are held out of the data set itself are always near. All other sets are far: noise, and the 8 x 8 digits, which are
blurred because they are enlarged.
"""

from collections.abc import Mapping
from typing import Final, Literal

Group = Literal["near", "far"]
GROUPS: Final[tuple[Group, Group]] = ("near", "far")
_CIFAR: Final = ("cifar10", "cifar100", "tiny_imagenet")
_GREY: Final = ("mnist", "mnist5k", "fashion_mnist", "notmnist")
_FAMILIES: Final = (_GREY, _CIFAR)


def group_of(dataset: str, unfamiliar: str, groups: Mapping[str, Group] | None = None) -> Group:
    """Return whether a set is near a data set or far from it.

    Args:
        groups: set -> group, which comes before the rule of this module.
    """
    if groups is not None and unfamiliar in groups:
        return groups[unfamiliar]
    pair = any(dataset in family and unfamiliar in family for family in _FAMILIES)
    return "near" if pair or unfamiliar == "held_out" else "far"
