"""Scores of models on task suites, through any OpenAI-compatible endpoint."""
