"""Take results away: predictions and exported coresets."""
