"""The error tree. Each error names what was wrong, the value, and what to do next; each maps to an exit code.

FactAgentError            70  (a defect of ours if it escapes as is)
├── UsageError             2  wrong flags or configuration
│   └── ConfigError        2  a key of the configuration, with its path
├── DataError             65  a malformed row or file, with file, line and field
│   └── CorruptError      65  a file whose hash or size differs from its manifest
├── ServiceError          69  a server or a needed component is not there
│   └── MissingExtraError 69  an optional dependency is not installed
└── TryAgainError         75  a passing state: training stopped by an alarm, service overloaded
"""

from __future__ import annotations


class FactAgentError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 70


class UsageError(FactAgentError):
    """Wrong flags, arguments or combinations of them."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key is unknown, conflicts, or holds a value out of range."""


class DataError(FactAgentError):
    """Input data is malformed. Use `at` to name the place."""

    exit_code = 65

    @classmethod
    def at(cls, path: object, line: int | None, field: str | None, problem: str) -> DataError:
        """Build the message `path:line: field 'x': problem`, leaving out what is unknown."""
        where = str(path) if line is None else f"{path}:{line}"
        return cls(f"{where}: field '{field}': {problem}" if field else f"{where}: {problem}")


class CorruptError(DataError):
    """A file does not match its manifest."""


class ServiceError(FactAgentError):
    """A server, a device or a component that is needed is not available."""

    exit_code = 69


class MissingExtraError(ServiceError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, module: str, extra: str) -> MissingExtraError:
        """The message that names the missing module and the command that installs it."""
        return cls(f"the module '{module}' is not installed; run: pip install 'factagent[{extra}]'")


class TryAgainError(FactAgentError):
    """A passing state; the same command may work later."""

    exit_code = 75
