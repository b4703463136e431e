"""Every rank holds every parameter whole: a plain model, or one inside DDP."""

from torch.nn import Parameter

from harness.sync.sharding.run import Run, whole_run


class Replicated:
    """Nothing to exchange."""

    name = "replicated"

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter."""
        return tuple(parameter.shape)

    def run(self, parameter: Parameter) -> Run:
        """The parameter itself."""
        return whole_run(parameter)

    def objection(self, parameter: Parameter) -> str | None:
        """Storage that was never given."""
        return "is on the meta device: load its weights before a sync" if parameter.is_meta else None
