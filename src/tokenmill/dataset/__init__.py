"""From a store to what a model is fed: rows, batches, plans, loaders."""
