"""Values that are too large to travel with a job: they wait in the DVC remote, each hash once.

The remote is that of ``BDL_REMOTE``. What travels is where a value lies there, without a credential: the cluster's
nodes read it with their own.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from .. import object_store

FILE: Final = "away.json"  # in a value's folder, where the value itself is elsewhere


def put(key: str, blob: bytes, remote: str) -> dict[str, Any]:
    """Upload a value unless it is there, and return where it lies.

    Raises:
        UserError: the remote cannot be used.
    """
    from ...run.remote import connect

    there, digest = connect(remote), hashlib.sha256(blob).hexdigest()
    try:
        path = there.keep(digest, blob)
    except Exception as error:  # whatever DVC's file systems raise
        raise UserError(f"{key}: cannot be put into {there.url} ({object_store.reason(error)})") from None
    return {"key": key, "path": path, "sha256": digest, **there.way()}


def get(at: Mapping[str, Any]) -> bytes:
    """Read a value that :func:`put` left.

    Raises:
        UserError: it cannot be read here, or is not what was put there.
    """
    import fsspec

    try:
        blob: bytes = fsspec.filesystem(at["protocol"], **at["options"]).cat_file(at["path"])
    except Exception as error:  # whatever a file system raises, a missing package of it included
        cure = "its nodes need the right to read it, and the package of its kind (such as s3fs)"
        raise UserError(
            f"{at['key']}: the cluster cannot read it from the remote ({object_store.reason(error)}): {cure}"
        ) from None
    if hashlib.sha256(blob).hexdigest() != at["sha256"]:
        raise UserError(f"{at['key']}: what lies in the remote at {at['path']} is damaged; remove it there")
    return blob
