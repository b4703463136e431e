"""Adapters: what makes an implementation a subject. One small file each, imported only when it is asked for."""

from harness.subjects.registry import Subject, builtin_names, resolve

__all__ = ["Subject", "builtin_names", "resolve"]
