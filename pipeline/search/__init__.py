"""Searches by Ray Tune and studies over grids: trials on training rows, scored on validation rows."""

from ..work.cluster import prepare_environment

prepare_environment()  # Ray reads it as it is imported: a head of ours must listen on 127.0.0.1 alone.
