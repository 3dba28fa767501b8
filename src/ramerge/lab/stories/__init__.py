"""The study on a base with real pre-training: stories260K, a language model of children's stories."""
