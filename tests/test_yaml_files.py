"""YAML files: one clear line for each file that cannot be read, and the numbers of YAML 1.2."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML

from bdl_pipe.errors import DataError
from bdl_pipe.yaml_files import read_yaml, write_yaml


def damaged(path: Path, blob: bytes) -> Path:
    path.write_bytes(blob)
    return path


def looped(path: Path) -> Path:
    path.symlink_to(path)
    return path


UNREADABLE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a folder": (lambda path: (path.mkdir(), path)[1], "is a folder, must be a file"),
    "below a file": (lambda path: damaged(path, b"") / "config.yaml", "there is no such file"),
    "a link to itself": (looped, "cannot be read"),
    "empty": (lambda path: damaged(path, b""), "must be sections (key: value)"),
    "a comment alone": (lambda path: damaged(path, b"# nothing\n"), "must be sections (key: value)"),
    "UTF-16": (lambda path: damaged(path, "seed: 0".encode("utf-16")), "must be UTF-8 text, got UTF-16; save it"),
    "Latin-1": (lambda path: damaged(path, "seed: 0 # é".encode("latin-1")), "must be UTF-8 text, got byte 0xE9 in"),
    "a zero byte": (lambda path: damaged(path, b"seed: 0\0"), "must be UTF-8 text, got byte 0x00 in line 1"),
    "a control character": (lambda path: damaged(path, b"seed: \x1b0"), "is not YAML: "),
    "a thousand levels": (lambda path: damaged(path, b"seed: " + b"[" * 5000 + b"]" * 5000), "is nested too deep"),
    "sections a thousand levels": (lambda path: damaged(path, b"{a: " * 5000 + b"}" * 5000), "is nested too deep"),
    "lists a hundred thousand levels": (lambda path: damaged(path, b"- " * 100_000), "is nested too deep"),
    "a list as a key": (lambda path: damaged(path, b"seed: 0\n? [a]\n: 1\n"), "a key must be a text or a number"),
    "no day": (lambda path: damaged(path, b"seed: 2024-13-45\n"), "is not YAML: "),
    "no number of a tag": (lambda path: damaged(path, b"seed: !!int many\n"), "is not YAML: "),
    "no truth of a tag": (lambda path: damaged(path, b"seed: !!bool many\n"), "is not YAML: "),
    "no time of a tag": (lambda path: damaged(path, b"seed: !!timestamp many\n"), "is not YAML: "),
    "a number without end": (lambda path: damaged(path, b"seed: " + b"9" * 6000), "is not YAML: "),
    "a hexadecimal without end": (lambda path: damaged(path, b"seed: 0x" + b"9" * 6000), "must be below 2^63"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_the_error_names_a_file_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    make, message = UNREADABLE[case]
    path = make(tmp_path / "config.yaml")
    with pytest.raises(DataError) as caught:
        read_yaml(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and message in text and "\n" not in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_the_error_names_a_file_without_permission(tmp_path: Path) -> None:
    path = damaged(tmp_path / "config.yaml", b"seed: 0")
    path.chmod(0)
    with pytest.raises(DataError, match=r"config\.yaml: cannot be read \(Permission denied\)"):
        read_yaml(path)


def test_numbers_are_read_by_the_rules_of_yaml_1_2(tmp_path: Path) -> None:
    """As DVC reads them: 1e-3 is a number."""
    path = damaged(tmp_path / "config.yaml", b"a: 1e-3\nb: 9223372036854775807\n")
    assert read_yaml(path) == {"a": 1e-3, "b": 2**63 - 1}


SCALARS = [
    *("no", "yes", "on", "off", "y", "n", "No", "YES", "true", "TRUE", "False", "~", "null", "Null", "+", "_1"),
    *("1e3", "1e-3", "-1E+5", "1.e+5", "1.5", "1.", "-.5", ".5e+3", ".5e3", "1e", "1e1000", "1_0.5", "6.02e23"),
    *("010", "09", "00", "0o17", "0o9", "0x1F", "0x", "0b101", "1_000", "+5", "-5", "750", "2021"),
    *(".inf", "-.INF", ".nan", "+.inf", "2020-01-01", "1.5.2", "a.b", "${y}", "né😀"),
]


@pytest.mark.parametrize("text", SCALARS)
def test_a_scalar_is_read_as_dvc_reads_it(tmp_path: Path, text: str) -> None:
    path = damaged(tmp_path / "config.yaml", f"a: {text}\n".encode())
    assert repr(read_yaml(path)) == repr(YAML(typ="safe").load(path))


def test_a_build_of_pyyaml_without_libyaml_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader")
    spec = importlib.util.find_spec("bdl_pipe.yaml_files")
    assert spec is not None and spec.loader is not None
    slow = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(slow)
    assert slow._Loader.__mro__[1] is yaml.SafeLoader
    path = damaged(tmp_path / "config.yaml", "\n".join(f"k{i}: {text}" for i, text in enumerate(SCALARS)).encode())
    assert repr(slow.read_yaml(path)) == repr(read_yaml(path))


@pytest.mark.parametrize("text", [*SCALARS, "12:30", "1:2:3", "=", "<<", "", " x ", "#c", "a: b", "two\nlines", "'q'"])
def test_a_written_text_is_read_back_by_every_yaml_parser(tmp_path: Path, text: str) -> None:
    """In YAML 1.2 and 1.1, as a key and as a value."""
    meant = {text: text, "list": [text]}
    path = damaged(tmp_path / "config.yaml", write_yaml(meant).encode())
    assert read_yaml(path) == meant
    assert YAML(typ="safe").load(path) == meant
    assert yaml.safe_load(path.read_text()) == meant
