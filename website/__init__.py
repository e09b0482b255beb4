"""Parts of README.md and docs/ that are generated from the code and from the stored report, never written by hand."""
