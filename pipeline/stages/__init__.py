"""The work of each stage kind: settings and artifacts in, an artifact out."""
