"""Choices that were measured, kept in one SQLite file that many processes may use at once.

Rules: a connection lives for one operation, so that nothing is carried across a fork; the rollback
journal is used, since write-ahead logging is unsafe on network homes; a damaged or foreign file is
set aside with one warning; whatever goes wrong, the caller goes on without the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

VERSION = 1
_WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Choice:
    """Which backend won, and every candidate's median time; `key` names shape and circumstances."""

    key: str
    backend: str
    seconds: dict[str, float]

    def sentence(self) -> str:
        """Why this backend, in words."""
        if not self.seconds:
            return f"{self.backend}, by rule: nothing was measured"
        best = self.seconds[self.backend]
        others = ", ".join(
            f"{name} {seconds * 1e3:.3g} ms ({seconds / best:.2f} times that)"
            for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1])
            if name != self.backend
        )
        return f"{self.backend}, measured: {best * 1e3:.3g} ms; {others or 'no other candidate'}"


def default_path() -> Path:
    """Where choices are kept unless settings say otherwise."""
    return Path(platformdirs.user_cache_dir("leanconv", appauthor=False)) / "choices.sqlite"


class Choices:
    """The file of choices.

    Every method works, and `get` finds nothing, where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """What went wrong last, in a sentence; empty where nothing did."""

    def get(self, key: str) -> Choice | None:
        """The choice for a key, or None."""
        found = None
        with self._open() as connection:
            query = "SELECT backend, seconds FROM choices WHERE key = ?"
            row = connection.execute(query, (key,)).fetchone()
            found = None if row is None else Choice(key, row[0], json.loads(row[1]))
        return found

    def put(self, choices: Iterable[Choice], *, replace_all: bool = False) -> None:
        """Stores choices in one transaction; what was there under the same keys is replaced.

        With `replace_all` nothing else is left.
        """
        rows = [(c.key, c.backend, json.dumps(c.seconds)) for c in choices]
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if replace_all:
                connection.execute("DELETE FROM choices")
            connection.executemany("INSERT OR REPLACE INTO choices VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")

    def all(self) -> list[Choice]:
        """Everything stored, by key."""
        found = []
        with self._open() as connection:
            rows = connection.execute("SELECT key, backend, seconds FROM choices ORDER BY key")
            found = [Choice(key, backend, json.loads(times)) for key, backend, times in rows]
        return found

    def clear(self) -> None:
        """Forgets everything."""
        with self._open() as connection:
            connection.execute("DELETE FROM choices")

    def export_to(self, file: Path) -> None:
        """Writes everything as JSON, to be shipped to machines of the same kind."""
        data = {"version": VERSION, "choices": [asdict(choice) for choice in self.all()]}
        file.write_text(json.dumps(data, indent=1) + "\n")

    def merge_from(self, file: Path, *, replace_all: bool = False) -> int:
        """Adds what `export_to` wrote, replacing equal keys; returns how many there were.

        With `replace_all` nothing else is left.

        Raises:
            ValueError: for a file of another version or kind.
            OSError: if it cannot be read.
        """
        try:
            data = json.loads(file.read_text())
        except ValueError:
            raise ValueError(f"`file` (={file}) is no export of choices: it is not JSON.") from None
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise ValueError(f"`file` (={file}) has version {version}; {VERSION} is read here.")
        try:
            choices = [Choice(**each) for each in data["choices"]]
        except (KeyError, TypeError):
            raise ValueError(f"`file` (={file}) is no export of choices.") from None
        if not all(_is_sound(choice) for choice in choices):
            raise ValueError(f"`file` (={file}) holds a choice of no key, backend or times.")
        self.put(choices, replace_all=replace_all)
        return len(choices)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = self._connected()
        try:
            yield connection
        except sqlite3.OperationalError as error:
            self._warn(f"cannot be used ({error})")
        except (sqlite3.DatabaseError, ValueError) as error:
            self._set_aside(str(error))
        finally:
            connection.close()

    def _connected(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._prepared()
        except sqlite3.OperationalError as error:
            self._warn(f"cannot be used ({error})")
        except OSError as error:
            self._warn(f"cannot be used ({error})")
        except sqlite3.DatabaseError as error:
            self._set_aside(str(error))
        memory = sqlite3.connect(":memory:", isolation_level=None)
        self._create(memory)
        return memory

    def _prepared(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._create(connection)
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"it has version {version}, not {VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _create(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS choices (key TEXT PRIMARY KEY, backend TEXT, seconds TEXT)"
        )
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    def _set_aside(self, reason: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.aside-{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        self._warn(f"was set aside as {aside.name}: {reason}")

    def _warn(self, what: str) -> None:
        first = not self.problem
        self.problem = f"the file of choices {self.path} {what}"
        if first:
            warnings.warn(f"leanconv: {self.problem}", stacklevel=2)


def _is_sound(choice: Choice) -> bool:
    times = choice.seconds
    return (
        isinstance(choice.key, str)
        and isinstance(choice.backend, str)
        and isinstance(times, dict)
        and all(isinstance(each, (int, float)) for each in times.values())
        and (not times or choice.backend in times)
    )
