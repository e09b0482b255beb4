"""The registry: name → (what it makes in which stage kind, what it needs, its config)."""
