"""The digest of a data set: it is prepared again after a change of its file or of the source of a set it names."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.sources import data_digest
from tests.pipeline.test_params import GOOD, changed, read

BOSTON = GOOD["datasets"]["boston"]
IMAGES = BOSTON | {"normalise": "train", "splits": 1, "validation": 10}


@pytest.mark.parametrize("more", [{"name": "table", "task": "regression"}, {"name": "uci", "set": "yacht"}])
def test_the_digest_depends_on_the_users_file(more: dict[str, str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y\n1,2\n")
    source = {"path": str(rows), "target": ["y"]} | more
    params = read(tmp_path, changed("datasets.boston.source", source))
    before = data_digest("boston", params)
    assert data_digest("boston", params) == before
    rows.write_text("x,y\n1,3\n")
    assert data_digest("boston", params) != before


def test_the_digest_depends_on_no_key_of_a_transfer_set_but_its_source(tmp_path: Path) -> None:
    def digest(**change: Any) -> str:
        mine = IMAGES | {"source": {"name": "mnist5k"}, "transfer": ["other"]}
        datasets = {"boston": BOSTON, "mine": mine, "other": IMAGES | {"source": {"name": "digits"}} | change}
        return data_digest("mine", read(tmp_path, changed("datasets", datasets)))

    before = digest()
    assert digest(validation=7) == before
    assert digest(source={"name": "svhn"}) != before
