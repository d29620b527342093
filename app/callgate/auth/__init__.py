"""Who asks, and what they may use. Takes keys as values; where they are written down is the config's business."""
