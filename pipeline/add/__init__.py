"""Add a user's data to params.yaml."""
