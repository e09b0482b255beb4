"""What each stage kind does: numbers and artifacts in, an artifact out."""
