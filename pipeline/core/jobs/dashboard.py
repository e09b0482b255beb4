"""A Ray dashboard: what is asked of it over plain HTTP, with what headers, and what its answers mean.

Ray's own client would wait for an answer without end, and follows a job over a websocket, which many a proxy does not
let through.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bdl_pipe.errors import ConfigError, UserError, brief

UNDER_WAY: Final = ("PENDING", "RUNNING")
_CONNECT_SECONDS: Final = 3.0
_PREFLIGHT_SECONDS: Final = 8.0
_READ_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 2.0
_LONGEST: Final = 600
_FULL: Final = "No space left on device"
_HALF: Final = r"(No module named|cannot import name '\w+' from) '(pipeline|bdl_pipe|stages)\b"  # what Ray could unpack
_TOKEN: Final = "RAY_AUTH_TOKEN"
_HEADERS: Final = "RAY_JOB_HEADERS"
_OTHER: Final = "RAY_API_SERVER_ADDRESS"  # which Ray's client prefers to the address that it is given


class Cut(Exception):
    """There is no answer from the cluster."""


class Dashboard:
    """A dashboard at ``url``, asked with the headers and the token that Ray's own ``ray job`` sends."""

    def __init__(self, url: str) -> None:
        self.url, self.headers = url, extra_headers()
        self._all = {**_authorization(self.headers), **self.headers}

    def get(self, path: str, *, stream: bool = False, seconds: float = _READ_SECONDS, **query: Any) -> Any:
        return self._ask("GET", path, seconds, params=query, stream=stream)

    def job(self, name: str, seconds: float = _READ_SECONDS) -> dict[str, Any] | None:
        """Return what the cluster knows of a job; None: nothing.

        Raises:
            Cut: there is no answer, or one of a proxy that has none.
        """
        answer = self.get(f"api/jobs/{name}", seconds=seconds)
        if answer.status_code not in (200, 404):
            raise Cut(f"status {answer.status_code}")
        return json.loads(answer.content) if answer.status_code == 200 else None

    def log(self, path: str, node: str | None, lines: int) -> Any:
        """Ask for the last lines of a file in the folder of a node's logs, -1: for all; the answer is a stream.

        Raises:
            Cut: there is no answer, or the dashboard or a proxy has no time for one.
        """
        answer = self.get("api/v0/logs/file", stream=True, node_id=node, filename=path, lines=lines)
        if answer.status_code in (429, 502, 503, 504):
            raise Cut(f"status {answer.status_code}")
        return answer

    def stop(self, name: str, seconds: float) -> None:
        """Stop a job.

        Raises:
            Cut: the cluster does not say that it has heard it.
        """
        answer = self._ask("POST", f"api/jobs/{name}/stop", seconds)
        if answer.status_code != 200:
            raise Cut(f"status {answer.status_code}")

    def _ask(self, verb: str, path: str, seconds: float, **options: Any) -> Any:
        import requests

        try:
            return requests.request(
                verb,
                f"{self.url}/{path}",
                headers=self._all,
                timeout=(_CONNECT_SECONDS, seconds),
                allow_redirects=False,  # a POST that is sent on becomes a GET
                **options,
            )
        except requests.RequestException as error:
            raise Cut(reason(error)) from None


@dataclass(frozen=True)
class Patient:
    """Somebody who asks again and again until there is an answer; the terminal is told once."""

    url: str
    title: str

    def ask(self, question: Callable[..., Any], *about: Any) -> Any:
        since = None
        while True:
            try:
                answer = question(*about)
            except Cut as error:
                if since is None:
                    since = time.monotonic()
                    print(f"{self.title}: no answer from {self.url} ({error}); what runs there goes on", flush=True)
                time.sleep(_AGAIN_SECONDS)
                continue
            if since is not None:
                print(f"{self.title}: {self.url} answers again after {time.monotonic() - since:.0f} s", flush=True)
            return answer


def preflight(url: str) -> None:
    """Refuse an address that is none of a Ray dashboard, or of a cluster of another version.

    Raises:
        UserError: naming the address and what is wrong with it.
    """
    _check_address(url)
    if importlib.util.find_spec("aiohttp") is None:
        raise UserError(
            f"RAY_ADDRESS={url}: jobs need ray[default], and ray is here without it: pip install -e '.[jobs]'"
        )
    said, board = f"RAY_ADDRESS={url}", Dashboard(url)
    try:
        answer = board.get("api/version", seconds=_PREFLIGHT_SECONDS)
        cluster = str(json.loads(answer.content)["ray_version"]) if answer.status_code == 200 else ""
    except Cut as error:
        cure = "start the head with ray[default] and this port open (mostly 8265), or unset RAY_ADDRESS"
        if "SSL" in str(error):
            cure = "is it http://? An authority of your own: set REQUESTS_CA_BUNDLE to its certificates"
        raise UserError(f"{said}: no Ray dashboard answers there ({error}); {cure}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{said}: what answers there is no Ray dashboard (its port is mostly 8265)") from None
    if answer.status_code in (401, 403):
        cure = f"set RAY_AUTH_MODE=token and {_TOKEN}, or {_HEADERS}, or ask for the right to submit jobs"
        raise UserError(f"{said}: access is refused ({answer.status_code}); {cure}")
    if answer.is_redirect:
        raise UserError(f"{said}: it sends on to {brief(answer.headers['location'])}; set it to where that leads")
    if not cluster:
        raise UserError(f"{said}: what answers there is no Ray dashboard (status {answer.status_code})")
    mine = importlib.metadata.version("ray")
    if cluster != mine:
        raise UserError(f"{said}: the cluster runs Ray {cluster}, this machine {mine}: give both the same")
    _check_python(said, board)


def reason(error: BaseException) -> str:
    """Name what lies at the bottom of an error of requests."""
    while error.__context__ is not None or error.__cause__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return brief(getattr(error, "strerror", None) or error or type(error).__name__, 80)


def bottom(text: str) -> str:
    """Find what went wrong in Ray's words, which hold tracebacks of the cluster, and say what helps."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    if any(_FULL in line for line in lines):
        return "a disk there is full, of the head or of a node: make space in the folder of Ray's temporary files"
    if half := [line for line in lines if is_half(line)]:
        cure = "a node there has half of our code, as from a time when its disk was full; make space and start it anew"
        return f"{brief(half[-1])}: {cure}"
    if "status code 413" in text:
        return "a proxy on the way takes no request of that size: raise its limit (nginx: client_max_body_size)"
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    said = brief([*lines, *errors][-1] if lines else "no reason is given", _LONGEST)
    if said == "Killed":
        return "Killed, by hand or for want of memory there: the same command goes on from the last checkpoints"
    return f"{said}: install constraints.txt there" if said.startswith("ModuleNotFoundError") else said


def is_half(line: str) -> bool:
    """Say whether an error is that of a node on which a part of our code is missing."""
    return bool(re.search(_HALF, line))


def extra_headers() -> dict[str, str]:
    """Read the headers that a proxy before the dashboard wants, as ``ray job`` does.

    Raises:
        ConfigError: they are no JSON object of strings; their values may be secret, and are not shown.
    """
    text = os.environ.get(_HEADERS, "").strip() or "{}"
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    if not (isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())):
        raise ConfigError(_HEADERS, """must be JSON such as {"Name": "value"}""")
    return headers


def _authorization(headers: dict[str, str]) -> dict[str, str]:
    """Return the header with Ray's token, from where Ray itself looks for it."""
    if os.environ.get("RAY_AUTH_MODE") != "token" or any(name.lower() == "authorization" for name in headers):
        return {}
    token = os.environ.get(_TOKEN, "").strip()
    path = Path(os.environ.get(f"{_TOKEN}_PATH") or Path.home() / ".ray" / "auth_token")
    if not token:
        try:
            token = path.read_text().strip()
        except (OSError, ValueError):
            return {}
    return {"Authorization": f"Bearer {token}"}


def _check_address(url: str) -> None:
    """Refuse what cannot be a dashboard's address.

    Raises:
        UserError: with the rule.
    """
    rule = "RAY_ADDRESS must be http://host:port (of the cluster's dashboard)"
    try:
        parts = urlsplit(url)
        wrong = not parts.hostname or bool(parts.query or parts.fragment) or parts.port == 0
    except ValueError:  # of half an IPv6 address, or a port that is no number
        raise UserError(f"{rule}, got {url!r}") from None
    if "@" in parts.netloc:
        raise UserError("RAY_ADDRESS=http://… must have no user or password in it; a token goes into RAY_AUTH_TOKEN")
    if wrong:
        raise UserError(f"{rule}, got {url!r}")
    other = os.environ.get(_OTHER, "").strip().rstrip("/")
    if other and other != url:
        raise UserError(f"{_OTHER}={other} must be RAY_ADDRESS={url}: unset one of them")


def _check_python(said: str, board: Dashboard) -> None:
    """Refuse a cluster of another Python before anything is sent; where the dashboard cannot say, the job does."""
    try:
        answer = board.get("api/v0/cluster_metadata", seconds=_PREFLIGHT_SECONDS)
        theirs = str(json.loads(answer.content)["data"]["pythonVersion"]).split(".")[:2]
    except (Cut, ValueError, KeyError, TypeError):
        return
    mine = list(platform.python_version_tuple()[:2])
    if theirs != mine:
        cluster, here = ".".join(theirs), ".".join(mine)
        raise UserError(f"{said}: the cluster runs Python {cluster}, this machine {here}: give both the same")
