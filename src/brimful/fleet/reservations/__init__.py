"""GPUs that tenants have paid for ahead."""
