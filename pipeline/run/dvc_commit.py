"""``python -m pipeline.run.dvc_commit < NAMES``: ``dvc commit --force`` of many stages, for the price of one.

The command reads DVC's graph and writes its record anew for each target: 1.3 s each where there are 561 stages. Here
both are done once. The steps are those of ``dvc.repo.commit``, by DVC's own objects; where a version of it has others,
the caller turns to the command.
"""

import sys
from collections.abc import Collection, Iterator
from typing import Any


def main(names: Collection[str]) -> None:
    """Record the stages of these names."""
    from dvc.repo import Repo

    with Repo(_wait_for_lock=True) as repo, repo.lock:
        stages = list(_asked(repo.index.stages, names))
        for stage in stages:
            stage.save()
            stage.commit()
        for path in {stage.path for stage in stages}:
            of_file = [stage for stage in stages if stage.path == path]
            of_file[0].dvcfile.dump_stages(of_file, update_pipeline=False)


def _asked(stages: Any, names: Collection[str]) -> Iterator[Any]:
    for stage in stages:
        if stage.addressing in names:
            yield stage


if __name__ == "__main__":
    main(set(sys.stdin.read().split()))
