"""One GPU: what a training run needs, why it fails or is slow, and how accurate the estimates are."""
