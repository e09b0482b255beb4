"""A store that machines share: each stage's result is pushed as it is made, and what another machine made is fetched.

``BDL_REMOTE`` names a DVC remote. DVC's own run cache does not know our stages, whose outputs persist; so beside the
objects, which are those of ``dvc push``, lies ``bdl-pipe/<address>.json``: the hashes of a result's files, at an
address that follows from all that the result is made from. It is written after the objects, so that nothing half
pushed is found. What is fetched is verified before it is put in place. Two machines that push the same result write
the same objects, each in one step.

Its config is DVC's; what is done with it is :mod:`.remote_store`'s. Nothing that goes wrong here fails a stage.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core import object_store, places
from ..core.settings import Settings
from ..plan.plan import Stage
from .remote_store import Damaged, Remote

MODULES: Final = ("dvc.data_cloud", "dvc.fs", "dvc_data.hashfile.build", "s3fs")  # what a stage imports for it
_CURE: Final = "unset BDL_REMOTE"
_AWAY: Final = places.STATE / "remote.away"
_AWAY_SECONDS: Final = 300.0  # for which no stage tries again a store that has failed; the end of a command does
_S3: Final = {"connect_timeout": 5, "read_timeout": 20}  # seconds; a minute each is the client's own
_CONFIG: Final = ".dvc/config"


def connect(name: str) -> Remote:
    """Return the DVC remote ``name``; ``on`` is the default one. The store is asked nothing yet.

    Raises:
        UserError: DVC is missing or has no such remote, its kind is not for this, or git tracks its credentials.
    """
    try:
        from dvc.config import Config
        from dvc.data_cloud import Remote as Cloud
        from dvc.fs import get_cloud_fs
    except ImportError:
        raise UserError("DVC is not installed; pip install dvc dvc-s3") from None
    for package in ("dvc", "dvc_data", "dvc_objects"):  # they log what we raise, with a traceback
        logging.getLogger(package).setLevel(logging.CRITICAL)
    for key, value in object_store.PATIENCE.items():
        os.environ.setdefault(key, value)
    try:
        config = Config.from_cwd()
        chosen = config["core"].get("remote", "") if name == "on" else name
        if chosen not in config["remote"]:
            known = ", ".join(config["remote"]) or "none"
            which = f"no remote {chosen}" if chosen else "no default remote"
            raise UserError(f"DVC has {which} (known: {known}); dvc remote add -d store s3://bucket/path")
        tracked = config.load_one("repo").get("remote", {})
        for part in _parts(config, chosen):
            _refuse_tracked(part, tracked.get(part, {}))
        cls, options, root = get_cloud_fs(config, name=chosen)
        if object_store.has_userinfo(str(options.get("endpointurl", ""))):
            raise UserError("its endpointurl must hold no user; dvc remote modify --local access_key_id …")
        if options.get("worktree") or options.get("version_aware"):
            raise UserError("a remote that is version_aware or a worktree cannot hold results; add another one")
        secrets = tuple(str(value) for key, value in options.items() if _is_credential(key, value))
        cloud = Cloud(chosen, root, cls(**_patient(cls, options)), **options)
        if cls.protocol == "s3":
            cloud.fs.fs.retries = 1  # of s3fs, around botocore's own: 15 minutes of an endpoint that says nothing
        url = object_store.hide(config["remote"][chosen]["url"], secrets)
        return Remote(chosen, url, cloud.fs, cloud.odb, root, secrets, options)
    except UserError:
        raise
    except Exception as error:  # whatever DVC and its plugins raise: a missing one, a broken file, an odd address
        raise UserError(f"DVC cannot use the remote ({_misconfigured(error)})") from None


def require(setting: str) -> None:
    """Refuse a remote that cannot be listed, written, read and cleaned, before any work starts.

    Raises:
        UserError: one line with the cure, within seconds.
    """
    if setting:
        try_again()
        object_store.probe("pipeline.run.remote", f"BDL_REMOTE={setting}", _CURE)


def fetch(setting: str, stage: Stage, made_from: Mapping[str, Any]) -> bool:
    """Put a stage's result in place, if the remote has it whole, and say whether it had."""
    return bool(_attempt(setting, stage, "fetched", lambda remote: remote.fetch(stage, made_from)))


def push(setting: str, stage: Stage) -> None:
    """Push the result of a stage, which is up to date; if that fails, say so on one line."""
    _attempt(setting, stage, "pushed", lambda remote: remote.push(stage))


def try_again() -> None:
    """Let the next push try the remote, though it has just failed: it may be back."""
    _AWAY.unlink(missing_ok=True)


def try_push(remote: Remote, stage: Stage) -> bool:
    """Push the result of a stage, which is up to date, and say whether it is there now."""
    if _is_away():
        return False
    try:
        remote.push(stage)
    except Exception:  # whatever the client of a store raises; the caller says what is left
        _AWAY.touch()
        return False
    return True


def main() -> int:
    """Try out the remote of the environment; print why it cannot be used."""
    try:
        remote = connect(Settings.read().remote)  # with its imports and its client: seconds of a core
        try:
            with object_store.limited():
                remote.try_out()
        except UserError:
            raise
        except Exception as error:  # whatever the client of a store raises
            raise UserError(f"{remote.url}: {object_store.reason(error, remote.secrets)}") from None
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _attempt(setting: str, stage: Stage, done: str, action: Callable[[Remote], bool | None]) -> bool | None:
    """Do ``action`` unless the remote is off or away; None where it fails, which is one line on stderr."""
    if not setting or _is_away():
        return None
    secrets: tuple[str, ...] = ()
    try:
        remote = connect(setting)
        secrets = remote.secrets
        try:
            return action(remote)
        except Damaged as error:
            remote.remove(error.paths)
            print(f"warning: {remote.name}: {error}; it is made here", file=sys.stderr, flush=True)
            return None
    except Exception as error:  # whatever the client of a store raises: the result matters more
        _AWAY.parent.mkdir(exist_ok=True)
        _AWAY.touch()
        why = str(error) if isinstance(error, UserError) else object_store.reason(error, secrets)
        line = f"warning: {stage.name} is not {done}: BDL_REMOTE={setting}: {why}"
        print(object_store.hide(line, secrets), file=sys.stderr, flush=True)
        return None


def _is_away() -> bool:
    """Say whether a process has just found that the remote fails."""
    try:
        return time.time() - _AWAY.stat().st_mtime < _AWAY_SECONDS
    except OSError:
        return False


def _patient(cls: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a remote's options for how long its client waits, unless they say so."""
    return {**(_S3 if cls.protocol == "s3" else {}), **options}


def _misconfigured(error: Exception) -> str:
    """Say why DVC takes no remote. What a config's line holds is not repeated: it may be a key."""
    cause = error.__cause__
    if (line := getattr(cause, "line_number", None)) is not None:
        return f"a file of its config cannot be read, line {line}: see .dvc/config and .dvc/config.local"
    if missing := re.search(r"'(dvc-[\w-]+)'", str(error)):
        return f"it needs a package; pip install {missing[1]}"
    return object_store.reason(error)


def _refuse_tracked(name: str, options: Mapping[str, Any]) -> None:
    """Refuse credentials in the file of DVC's that git tracks."""
    found = [key for key, value in options.items() if _is_credential(key, value)]
    if found:
        how = f"dvc remote modify --unset {name} {found[0]}, then dvc remote modify --local {name} {found[0]} …"
        raise UserError(f"{_CONFIG}, which git tracks, holds the {found[0]} of the remote {name}; {how}")
    url = str(options.get("url", ""))
    if object_store.has_userinfo(url) and not re.match(r"ssh://[^:/@]+@[^@]*$", url):  # a name alone lets nobody in
        how = f"dvc remote modify --local {name} user … and password …"
        raise UserError(f"{_CONFIG}, which git tracks, holds a user in the url of {name}; take it out, {how}")


def _is_credential(key: str, value: Any) -> bool:
    return object_store.is_secret(key) and str(value).lower() not in ("true", "false")


def _parts(config: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a remote and those that its url ``remote://other/path`` leads to, whose options are its own, too."""
    left = dict(config["remote"])
    while name in left:
        yield name
        name = str(left.pop(name)["url"]).partition("remote://")[2].partition("/")[0]


if __name__ == "__main__":
    sys.exit(main())
