"""Errors that a user can act on: one line with the file or key, the rule and the value."""


class UserError(ValueError):
    """Bad input. The command line prints it as one line, without a traceback."""


class ConfigError(UserError):
    """A number in ``params.yaml`` that breaks its rule."""

    def __init__(self, path: str, rule: str, value: object = ...) -> None:
        self.path, self.rule, self.value = path, rule, value
        got = "" if value is ... else f", got {value!r}"
        super().__init__(f"{path} {rule}{got}")

    def __reduce__(self) -> tuple[type, tuple[str, str, object]]:
        return type(self), (self.path, self.rule, self.value)


class DataError(UserError):
    """A data set whose files, columns, rows, labels, shapes or values are wrong."""


class Diverged(UserError):
    """A fit whose loss, weights or predictions became NaN or infinite. A search takes it as a bad trial and goes on."""


class ArtifactError(UserError):
    """An artifact that is missing, truncated, altered or of another schema version."""


def require(condition: bool, path: str, rule: str, value: object = ...) -> None:
    """Raise :class:`ConfigError` unless ``condition`` holds; for ``__post_init__`` of configs."""
    if not condition:
        raise ConfigError(path, rule, value)
