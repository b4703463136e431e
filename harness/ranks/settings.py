"""Everything that a rank's process must know to become a pytest session like its parent's."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.ranks.marker import RankSpec


@dataclass(frozen=True)
class Terminal:
    """``--rank-pdb``: one rank at the terminal of the process that the user started."""

    rank: int
    pid: int
    """Its descriptors 0, 1 and 2 are opened through ``/proc``."""


@dataclass(frozen=True)
class RankSettings:
    """Sent to every rank of a pool when it starts. Plain data."""

    spec: RankSpec
    """World size, backend, device."""
    args: tuple[str, ...]
    """The command line of the parent's session, unchanged."""
    plugins: tuple[str, ...]
    """Plugins that the parent's session was given by name."""
    invocation_dir: Path
    """The directory in which the parent was started: relative arguments are relative to it."""
    basetemp: Path
    """Folder for ``tmp_path``; each rank makes its own inside."""
    folder: Path
    """The pool's own folder: output of the processes, stack dumps."""
    environ: dict[str, str]
    """The parent's environment when the pool starts (a fork server's is older)."""
    store_host: str
    """Address of the store that the parent owns."""
    store_port: int
    """Its port."""
    prefix: str
    """Prefix of this pool's keys in the store."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports."""
    plugin_modules: tuple[str, ...] = ()
    """Modules of installed pytest plugins, which it imports too."""
    files: frozenset[Path] = frozenset()
    """Files that hold tests on ranks, as the parent found them; the ranks collect no others. Empty: all."""
    debug: Terminal | None = None
    """Which rank enters the debugger, and whose terminal it uses."""
    live: bool = False
    """``-s``: output goes to the terminal as it comes, prefixed with the rank."""
    workerinput: dict[str, object] = field(default_factory=dict)
    """What xdist told the parent, if the parent is an xdist worker."""

    def output_file(self, rank: int) -> Path:
        """Where a rank's output goes when pytest does not capture it; a named pipe with ``-s``."""
        return self.folder / f"rank{rank}.out"

    def stack_file(self, rank: int) -> Path:
        """Where faulthandler writes a rank's stacks."""
        return self.folder / f"rank{rank}.stack"
