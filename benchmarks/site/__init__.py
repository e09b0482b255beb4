"""Parts of README.md and docs/ that are written from the code and from the stored report, never by hand."""
