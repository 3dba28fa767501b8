"""LoRA adapters read as the models that they stand for: base plus low-rank product, never written down."""
