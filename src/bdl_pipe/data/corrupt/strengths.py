"""The strengths of CIFAR-10-C: one tuple per corruption, severities 1 to 5 (lengths in pixels of 32×32)."""

from typing import Any, Final

SEVERITIES: Final = (1, 2, 3, 4, 5)

STRENGTHS: Final[dict[str, tuple[Any, ...]]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # standard deviation; intensities are in [0, 1]
    "shot_noise": (500, 250, 100, 75, 50),  # photons at intensity 1
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # share of values replaced
    "speckle_noise": (0.06, 0.10, 0.12, 0.16, 0.20),  # standard deviation relative to the value
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1.0),  # standard deviation
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),  # disc's radius, disc's blur
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),  # blur, reach, rounds
    "motion_blur": ((6.0, 1.0), (6.0, 1.5), (6.0, 2.0), (8.0, 2.0), (9.0, 2.5)),  # radius, standard deviation
    "zoom_blur": (7, 12, 16, 21, 26),  # number of averaged zooms: 1.00, 1.01, …
    # mean and sd of grains, zoom, threshold, radius and sd of the grains' blur, share of the image kept
    "snow": (
        (0.10, 0.2, 1.00, 0.60, 8.0, 3.0, 0.95),
        (0.10, 0.2, 1.00, 0.50, 10.0, 4.0, 0.90),
        (0.15, 0.3, 1.75, 0.55, 10.0, 4.0, 0.90),
        (0.25, 0.3, 2.25, 0.60, 12.0, 6.0, 0.85),
        (0.30, 0.3, 1.25, 0.65, 14.0, 12.0, 0.80),
    ),
    "frost": ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # image's weight, texture's weight
    "fog": ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),  # thickness, roughness decay
    # liquid's mean, sd, blur and threshold; strength (water) or blur of the mask (mud); kind of liquid
    "spatter": (
        (0.62, 0.1, 0.7, 0.70, 0.5, "water"),
        (0.65, 0.1, 0.8, 0.70, 0.5, "water"),
        (0.65, 0.3, 1.0, 0.69, 0.5, "water"),
        (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
        (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
    ),
    "brightness": (0.05, 0.10, 0.15, 0.20, 0.30),  # added to the HSV value
    "contrast": (0.75, 0.50, 0.40, 0.30, 0.15),  # kept share of the distance from the mean
    "saturate": ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),  # HSV saturation: factor, offset
    # displacement, blur of the displacement, shift of the affine map's corners; all are shares of the side
    "elastic_transform": (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": (0.95, 0.90, 0.85, 0.75, 0.65),  # remaining share of the side
    "jpeg_compression": (80, 65, 58, 50, 40),  # quality
}
