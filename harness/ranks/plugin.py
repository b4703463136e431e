"""pytest hooks that run one item on several ranks."""
