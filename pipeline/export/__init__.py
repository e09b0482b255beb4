"""Exports of results: predictions, models and coresets. An export's folder is written completely or not at all."""
