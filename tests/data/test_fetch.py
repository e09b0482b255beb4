"""Rows by TensorFlow Datasets (TFDS), from small archives in the folder where TFDS looks for downloads."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdl_pipe.errors import DataError, UserError

from . import archives as made

pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of TFDS and of its imports

from bdl_pipe.data.sources.archive import fetch, require_reachable  # noqa: E402


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "stl10", "mnist"])
def test_tfds_builder_ingests_and_serves_the_rows_in_order(name: str, tmp_path: Path) -> None:
    small = made.small(name, tmp_path / "downloads")
    parsed = small.parse(tmp_path / "downloads")
    first = fetch(small, downloads=tmp_path / "downloads", cache=tmp_path / "cache")
    for file in small.files:
        (tmp_path / "downloads" / file.name).unlink()
    again = fetch(small, cache=tmp_path / "cache")  # from TFDS's cache: neither files nor a network are needed
    for raw in (first, again):
        assert raw.classes == parsed.classes and raw.test is not None and parsed.test is not None
        for ours, theirs in ((raw.train, parsed.train), (raw.test, parsed.test)):
            np.testing.assert_array_equal(ours.inputs, theirs.inputs)
            np.testing.assert_array_equal(ours.targets, theirs.targets)


def test_a_download_with_another_checksum_is_refused(tmp_path: Path) -> None:
    made.small("cifar10", tmp_path / "downloads")
    with pytest.raises(DataError, match=r"cifar10: .*cifar-10-binary\.tar\.gz, has wrong checksum"):
        fetch(made.ARCHIVES["cifar10"], downloads=tmp_path / "downloads", cache=tmp_path / "cache")


def test_without_a_network_the_error_names_the_ways_to_get_the_data(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "*")
    waits: list[float] = []

    def refuse(address: tuple[str, int], timeout: float) -> socket.socket:
        waits.append(timeout)
        raise OSError("no route")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name, way in (("fashion_mnist", "apt-get install dataset-fashion-mnist"), ("cifar10", "cifar-10-binary")):
        with pytest.raises(UserError, match=rf"cannot be reached \(no route\).*{way}.*BDL_DATA_DIR/{name}/"):
            fetch(made.ARCHIVES[name], cache=tmp_path)
    assert waits == [3.0, 3.0]


def test_a_listening_host_or_proxy_counts_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    archive = made.ARCHIVES["cifar10"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        require_reachable(replace(archive, files=(replace(archive.files[0], url=f"{address}/x.gz"),)))
        monkeypatch.setenv("https_proxy", address)
        require_reachable(archive)
    with pytest.raises(UserError, match="cannot be reached"):  # the server has closed: the proxy is asked, not the host
        require_reachable(archive)
